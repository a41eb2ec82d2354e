"""What differs between two contents of an asset, in words: for whoever reads what an update changes."""

import json
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple

_FIELDS = ("template", "mappings", "properties")
_SETTINGS = ("template", "settings")
# What may be left out where it is empty.
_EMPTY = {_FIELDS[:1], _FIELDS[:2], _FIELDS, _SETTINGS}
_NAMED = 8  # more names than these are counted
_LONGEST = 120  # characters; of what is longer it is only said that it is changed


class _Change(NamedTuple):
    """One place where two contents differ; None where one has nothing."""

    path: tuple[str, ...]
    old: Any
    new: Any


def words(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a phrase on each kind of change between two contents: fields of a mapping, settings, anything else."""
    changes = list(_walk(old, new))
    fields = [change for change in changes if _is_in(_FIELDS, change)]
    new_fields = [_field(change) for change in fields if change.old is None and _is_whole(change)]
    removed = [_field(change) for change in fields if change.new is None and _is_whole(change)]
    phrases = [added(new_fields)] if new_fields else []
    phrases += [f"{counted(removed)} removed: {named(removed)}"] if removed else []
    phrases += [
        f"field {_field(change)}: {change.path[-1]} {_values(change)}" for change in fields if not _is_whole(change)
    ]
    for change in changes:
        if _is_in(_SETTINGS, change):
            phrases.append(f"setting {'.'.join(change.path[2:])}: {_values(change)}")
        elif change not in fields:
            phrases.append(f"{'.'.join(change.path)}: {_values(change)}")
    return tuple(phrases)


def added(fields: Sequence[str], where: str = "") -> str:
    """Return the phrase on fields that are new, and where."""
    return f"{counted(fields)} new{where and f', {where}'}: {named(fields)}"


def counted(names: Sized) -> str:
    """Return how many fields they are."""
    return f"{len(names):,} field{'' if len(names) == 1 else 's'}"


def named(names: Sequence[str]) -> str:
    """Return the names in a row, the last of many counted."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest:,} more" if rest > 0 else "")


def _walk(old: Mapping[str, Any], new: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[_Change]:
    for key in sorted({**old, **new}):
        otherwise = {} if (*path, key) in _EMPTY else None
        before, after = old.get(key, otherwise), new.get(key, otherwise)
        if before == after or (not path and key == "_meta"):
            continue
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _walk(before, after, (*path, key))
        else:
            yield _Change((*path, key), before, after)


def _is_in(place: tuple[str, ...], change: _Change) -> bool:
    return change.path[: len(place)] == place and len(change.path) > len(place)


def _is_whole(change: _Change) -> bool:
    """Tell whether a change of a mapping is about a field, not one of its parameters."""
    return change.path[-2] == "properties"


def _field(change: _Change) -> str:
    inside = change.path[len(_FIELDS) :] if _is_whole(change) else change.path[len(_FIELDS) : -1]
    return ".".join(name for name in inside if name != "properties")


def _values(change: _Change) -> str:
    """Return what a value was and is; of a list what came and went."""
    if isinstance(change.old, list) and isinstance(change.new, list):
        came = [str(item) for item in change.new if item not in change.old]
        went = [str(item) for item in change.old if item not in change.new]
        parts = ([f"with {named(came)}"] if came else []) + ([f"without {named(went)}"] if went else [])
        text = ", ".join(parts) or "in another order"
    else:
        text = " -> ".join(_shown(value) for value in (change.old, change.new))
    return text if len(text) <= _LONGEST and "\n" not in text else "changed"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
