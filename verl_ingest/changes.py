"""What the kit has on a server: whether it wrote it, whether someone else changed it since, what would change now.

An asset (a template, a saved object, a dashboard) is compared in its content: a dict that says the same whichever
version of the server gives it back. Its `_meta` says who wrote it, and has a hash by which a later change is seen.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from verl_ingest import __version__, differences

MANAGED_BY = "verl-ingest"


@dataclass(frozen=True)
class Row:
    """How one asset stands on the server: created and updated are to be written, kept and differs are not.

    `name` is what the server calls it, `asset` what the kit would write. `why` says what makes it another's, a newer
    kit's where `is_newer`, also where it may be overwritten. `versions` are those of the kit that wrote and that would
    write, where they are two. `news` says in words what the kit's is different in; `diff` leads there line by line.
    """

    name: str
    asset: Any
    state: str
    why: str = ""
    is_newer: bool = False
    versions: str = ""
    news: tuple[str, ...] = ()
    diff: str = ""

    @property
    def is_to_be_written(self) -> bool:
        """Tell whether the server has something else than the kit wants, and may be given it."""
        return self.state in ("created", "updated")


def compare(
    name: str, asset: Any, *, wanted: Mapping[str, Any], found: Mapping[str, Any] | None, overwrite: bool = False
) -> Row:
    """Return how an asset stands, by the content the kit wants and that the server has, None where it has none.

    With `overwrite` a stranger's change counts as the kit's own.
    """
    if found is None:
        return Row(name, asset, "created")
    if found == wanted:
        return Row(name, asset, "kept")
    version = found.get("_meta", {}).get("version", __version__)
    why = _strangeness(found)
    is_newer = not why and is_older(__version__, version)
    if is_newer:
        why = f"written by {MANAGED_BY} {version}, this is {__version__}"
    return Row(
        name,
        asset,
        "differs" if why and not overwrite else "updated",
        why,
        is_newer=is_newer,
        versions=f"{version} -> {__version__}" if version != __version__ else "",
        news=differences.words(found, wanted),
        diff=_diff(found, wanted),
    )


def mark(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the `_meta` of what this version of the kit writes."""
    return {"managed_by": MANAGED_BY, "version": __version__, "content": content_hash(content)}


def content_hash(content: Mapping[str, Any]) -> str:
    """Return a hash of a content, whoever wrote it and whenever: `_meta` does not count."""
    rest = {key: value for key, value in content.items() if key != "_meta"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]


def is_older(version: str, than: str) -> bool:
    """Tell which of two versions of the kit came first."""
    return _number(version) < _number(than)


def _strangeness(found: Mapping[str, Any]) -> str:
    """Say why what the server has is not the kit's own; an empty text where it is."""
    meta = found.get("_meta", {})
    if meta.get("managed_by") != MANAGED_BY:
        return f"not written by {MANAGED_BY}"
    if meta.get("content") != content_hash(found):
        return f"changed by hand after {MANAGED_BY} {meta.get('version')} wrote it"
    return ""


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    lines = [json.dumps(body, indent=2, sort_keys=True, ensure_ascii=False).splitlines() for body in (old, new)]
    return "\n".join(difflib.unified_diff(*lines, "on the server", "of the kit", lineterm=""))
