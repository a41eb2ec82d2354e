"""Load and check fields.yml, and hold documents against it."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import Any

from verl_ingest.catalog import CatalogueError, read

KEYS = ("name", "type", "short", "example", "from", "index", "list", "path", "mapping")
REQUIRED = ("name", "type", "short", "example", "from")
REQUIRED_OF_ALIAS = ("name", "type", "short", "path")
INDICES = ("records", "samples", "steps")

# The last second of Elasticsearch's date_nanos.
LAST_TIME = datetime(2262, 4, 11, 23, 47, 16)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z", re.ASCII)


@dataclass(frozen=True)
class Field:
    """One field of a document; `source` says what fills it, `index` is None where records and samples carry it."""

    name: str
    type: str
    short: str
    example: Any = None
    source: str | None = None
    index: str | None = None
    is_list: bool = False
    path: str | None = None
    mapping: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Fields:
    """The catalogue: every field in the order of the file, what each flag means, and each rule that drops a line."""

    fields: tuple[Field, ...]
    flags: Mapping[str, str]
    rules: Mapping[str, str]

    @cached_property
    def by_name(self) -> dict[str, Field]:
        """Map each name to its field."""
        return {field.name: field for field in self.fields}


@cache
def load() -> Fields:
    """Load the catalogue; raises CatalogueError when an entry is wrong."""
    return check(read("fields.yml"))


def check(catalogue: Mapping[str, Any]) -> Fields:
    """Turn the content of fields.yml into Fields; raises CatalogueError at the first wrong entry."""
    fields: dict[str, Field] = {}
    for entry in catalogue["fields"]:
        field = _field(entry)
        if field.name in fields:
            raise CatalogueError(f"fields.yml: {field.name} is listed twice; remove one entry.")
        fields[field.name] = field
    for field in fields.values():
        if field.type == "alias" and field.path not in fields:
            raise CatalogueError(
                f"fields.yml: {field.name} is an alias of {field.path}, which is no field; mend its path."
            )
    for kind in ("flag", "rule"):
        for name, meaning in catalogue[f"{kind}s"].items():
            if not isinstance(name, str) or not isinstance(meaning, str) or not meaning:
                raise CatalogueError(
                    f"fields.yml: {kind} {name!r} must be a text and say what it means; quote or describe it."
                )
    return Fields(tuple(fields.values()), catalogue["flags"], catalogue["rules"])


def problems(document: Mapping[str, Any]) -> list[str]:
    """Say what the catalogue does not allow in a document, in the form that goes to Elasticsearch; [] is a good one."""
    catalogue = load()
    carrier = "samples" if document.get("kind") == "sample" else "records"
    found = []
    for name, value in document.items():
        field = catalogue.by_name.get(name)
        if field is None:
            found.append(f"{name}: not in the catalogue")
        elif field.index not in (None, carrier):
            found.append(f"{name}: only {field.index} carry it")
        elif (wrong := _misfit(field, value)) is not None:
            found.append(f"{name}: {wrong}")
    flags = document.get("flags")
    if isinstance(flags, list):
        found += [f"flags: {flag} is not in the catalogue" for flag in flags if _flag(flag) not in catalogue.flags]
    return found


def _field(entry: Mapping[str, Any]) -> Field:
    label = entry.get("name", f"the entry {dict(entry)}")
    kind = entry.get("type")
    for key in REQUIRED_OF_ALIAS if kind == "alias" else REQUIRED:
        if entry.get(key) in (None, ""):
            raise CatalogueError(f"fields.yml: {label} has no {key}; add it.")
    if kind != "alias" and kind not in _FITS:
        raise CatalogueError(f"fields.yml: {label} has the unknown type {kind}; use alias, {', '.join(_FITS)}.")
    for key in entry:
        if key not in KEYS:
            raise CatalogueError(f"fields.yml: {label} has the unknown key {key}; use {', '.join(KEYS)}.")
    if entry.get("index") not in (None, *INDICES):
        raise CatalogueError(
            f"fields.yml: {label} is in index {entry['index']}; use {' or '.join(INDICES)}, or leave it out."
        )
    field = Field(
        name=entry["name"],
        type=kind,
        short=entry["short"],
        example=entry.get("example"),
        source=entry.get("from"),
        index=entry.get("index"),
        is_list=entry.get("list", False),
        path=entry.get("path"),
        mapping=entry.get("mapping"),
    )
    if kind != "alias" and (wrong := _misfit(field, field.example)) is not None:
        raise CatalogueError(f"fields.yml: the example of {label} does not fit its type: {wrong}; mend one of them.")
    return field


def _flag(flag: Any) -> str:
    return str(flag).partition(":")[0]


def _misfit(field: Field, value: Any) -> str | None:
    """Say why a value does not fit the field, or None where it does."""
    if field.type == "alias":
        return f"an alias can't be written; write {field.path}"
    is_opaque = (field.mapping or {}).get("enabled") is False  # an object that the server keeps and does not look into
    expected, fits = _FITS["flattened" if is_opaque else field.type]
    if not field.is_list:
        return None if fits(value) else f"{value!r} is not {expected}"
    if not isinstance(value, list):
        return f"{value!r} is not a list"
    return next((f"{item!r} is not {expected}" for item in value if not fits(item)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit


def _is_time(value: Any) -> bool:
    if not isinstance(value, str) or not _TIME.fullmatch(value):
        return False
    try:
        moment = datetime.fromisoformat(value[:19])
    except ValueError:
        return False
    return datetime(1970, 1, 1) <= moment <= LAST_TIME


def _are_metrics(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and bool(name.strip()) and _is_number(number) for name, number in value.items()
    )


_FITS = {
    "keyword": ("a text", lambda value: isinstance(value, str)),
    "text": ("a text", lambda value: isinstance(value, str)),
    "long": ("a whole number of 64 bits", lambda value: _is_whole(value, 2**63)),
    "integer": ("a whole number of 32 bits", lambda value: _is_whole(value, 2**31)),
    "double": ("a finite number", _is_number),
    "date_nanos": ("a UTC time such as 2026-03-01T16:00:09.350000038Z", _is_time),
    "object": ("an object of finite numbers", _are_metrics),
    "flattened": ("an object", lambda value: isinstance(value, dict)),
}
