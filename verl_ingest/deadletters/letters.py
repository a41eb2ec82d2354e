"""The files of rejected chunks in a folder, and what is known of each."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from verl_ingest.edge.fluentbit import PREFIXES
from verl_ingest.errors import InputError

_NAME = re.compile(r"(?P<tag>.+)_\d+_(?P<output>.+)_(0x)?[0-9a-f]+\.flb")


@dataclass
class Letter:
    """A file of rejected chunks, and what became of its records.

    modified_ns: when the last of them was rejected; first, last: times of the records, ns since 1970; stored: how many
    are in the store, None where it was not asked; created: how many of these a replay wrote; refused: how many the
    store does not take, by reason. `error` says why some are not known or can't be sent.
    """

    path: Path
    tag: str
    output: str
    size: int
    modified_ns: int
    records: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    first: int | None = None
    last: int | None = None
    stored: int | None = None
    created: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    error: str | None = None
    removed: bool = False

    @property
    def missing(self) -> int | None:
        """How many records are not in the store, None where it was not asked."""
        return None if self.stored is None else self.records - self.stored

    @property
    def is_settled(self) -> bool:
        """Whether all that the file holds is in the store."""
        return self.error is None and self.missing == 0

    def as_json(self) -> dict[str, Any]:
        """Return all that is known, times as text in UTC."""
        return {
            "path": str(self.path),
            "tag": self.tag,
            "output": self.output,
            "bytes": self.size,
            "rejected": moment(self.modified_ns),
            "records": self.records,
            "runs": dict(self.runs),
            "first": None if self.first is None else moment(self.first),
            "last": None if self.last is None else moment(self.last),
            "stored": self.stored,
            "missing": self.missing,
            "created": self.created,
            "refused": dict(self.refused),
            "error": self.error,
            "removed": self.removed,
        }


def find(paths: Iterable[Path]) -> list[Letter]:
    """Return the given files, and of given folders those named *.flb; the oldest first.

    Raises InputError for a path that is not there or can't be looked into.
    """
    letters: dict[Path, Letter] = {}
    for path in paths:
        try:
            for file in path.iterdir() if path.is_dir() else [path]:
                if file == path or file.suffix == ".flb":
                    letters[file] = _describe(file)
        except OSError as error:
            raise InputError(f"{path}: it can't be read: {error.strerror}.") from None
    return sorted(letters.values(), key=lambda letter: (letter.modified_ns, letter.path))


def _describe(file: Path) -> Letter:
    stat, named = file.stat(), _NAME.fullmatch(file.name)
    tag, output = (named["tag"], named["output"]) if named else ("", "")
    letter = Letter(file, tag, output, stat.st_size, stat.st_mtime_ns)
    if tag not in PREFIXES:
        why = f"the tag {tag} is not the kit's" if named else "the name is not TAG_0_OUTPUT_0xADDRESS.flb"
        letter.error = f"{file}: {why}, so the index of its records is not known; it is left alone."
    return letter


def remove(letter: Letter) -> None:
    """Remove a file, unless an agent added to it meanwhile; raises InputError where that is not allowed."""
    try:
        stat = letter.path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (letter.size, letter.modified_ns):
            letter.path.unlink()
            letter.removed = True
    except OSError as error:
        raise InputError(f"{letter.path}: the file can't be removed: {error.strerror}.") from None


def moment(time_ns: int) -> str:
    """Return a time as Fluent Bit writes it, with all nanoseconds."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"
