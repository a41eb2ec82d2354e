"""Load and check troubles.yml, and tell which trouble a log line speaks of."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from verl_ingest.catalog import CatalogueError, read

KEYS = ("name", "short", "critical", "says", "warns", "consequence", "first_action")
ANY_ERROR = "failed"


@dataclass(frozen=True)
class Trouble:
    """Something that goes wrong; `critical` where the step is lost, `consequence` where it mostly follows another."""

    name: str
    short: str
    first_action: str
    says: tuple[re.Pattern[str], ...] = ()
    warns: tuple[str, ...] = ()
    critical: bool = False
    consequence: bool = False


@cache
def load() -> Mapping[str, Trouble]:
    """Load the troubles by name, in the order of the file; raises CatalogueError when an entry is wrong."""
    return check(read("troubles.yml"))


def check(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, Trouble]:
    """Turn the content of troubles.yml into troubles; raises CatalogueError at the first wrong entry."""
    found: dict[str, Trouble] = {}
    for entry in entries:
        label = entry.get("name", f"the entry {dict(entry)}")
        for key in entry:
            if key not in KEYS:
                raise CatalogueError(f"troubles.yml: {label} has the unknown key {key}; use {', '.join(KEYS)}.")
        for key in ("name", "short", "first_action"):
            if not entry.get(key):
                raise CatalogueError(f"troubles.yml: {label} has no {key}; add it.")
        if label in found:
            raise CatalogueError(f"troubles.yml: {label} is there twice; leave one.")
        says, warns = tuple(map(_pattern, entry.get("says", ()))), tuple(entry.get("warns", ()))
        found[label] = Trouble(**{**entry, "says": says, "warns": warns})
    if ANY_ERROR not in found:
        raise CatalogueError(f"troubles.yml: there is no {ANY_ERROR}, which all other errors are; add it.")
    return found


def warned_of(text: str) -> Trouble | None:
    """Return the known trouble that a warning speaks of."""
    line = text.lower()
    return next((found for found in load().values() if any(phrase.lower() in line for phrase in found.warns)), None)


def said_in(text: str) -> Trouble | None:
    """Return the known trouble that an error or its stack speaks of."""
    return next((trouble for trouble in load().values() if any(says.search(text) for says in trouble.says)), None)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise CatalogueError(f"troubles.yml: '{text}' is not a regular expression ({error}); mend it.") from None
