"""The balance of an audit: lines = indexed + dropped + missing + same_id + unfinished, of each file and of all."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_ingest.load.files import LogFile

NAMED_LINES = 3  # missing lines of a file whose text is kept


@dataclass
class Balance:
    """What became of the lines of one file.

    indexed: in the store (`in_two_days` of them more than once); flagged: of these, how often for which reason;
    dropped: by which rule; same_id: equal to a line at the same place of a file that differs by rotation only;
    unfinished: the last line, where it has no end yet. `error` says why the file could not be read to its end.
    """

    log: LogFile
    lines: int = 0
    indexed: int = 0
    flagged: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    same_id: int = 0
    unfinished: int = 0
    in_two_days: int = 0
    repaired: int = 0
    missing_offsets: array = field(default_factory=lambda: array("Q"))
    first_missing: list[tuple[int, str]] = field(default_factory=list)
    error: str | None = None

    @property
    def missing(self) -> int:
        """How many lines are neither indexed nor accounted for otherwise."""
        return len(self.missing_offsets)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers, every missing line named by its byte offset."""
        return {
            "path": str(self.log.path),
            "run_id": self.log.run_id,
            **_numbers([self]),
            "repaired": self.repaired,
            "error": self.error,
            "missing_offsets": self.missing_offsets.tolist(),
        }


@dataclass(frozen=True)
class Report:
    """The balances of all files, and what a repair met: documents that the server refused, by reason."""

    files: Sequence[Balance]
    refused: Counter[str]
    seconds: float

    @property
    def missing(self) -> int:
        """How many lines are missing, of all files."""
        return sum(file.missing for file in self.files)

    @property
    def unreadable(self) -> list[str]:
        """Why files could not be read."""
        return [file.error for file in self.files if file.error]

    def numbers(self) -> dict[str, Any]:
        """Return the sums over all files."""
        return _numbers(self.files)

    def as_json(self) -> dict[str, Any]:
        """Return the sums, and the numbers of each file."""
        return {**self.numbers(), "files": [file.as_json() for file in self.files]}


def _numbers(files: Iterable[Balance]) -> dict[str, Any]:
    files = list(files)
    return {
        "lines": sum(file.lines for file in files),
        "indexed": sum(file.indexed for file in files),
        "flagged": dict(sum((file.flagged for file in files), Counter())),
        "dropped": dict(sum((file.dropped for file in files), Counter())),
        "missing": sum(file.missing for file in files),
        "same_id": sum(file.same_id for file in files),
        "unfinished": sum(file.unfinished for file in files),
        "in_two_days": sum(file.in_two_days for file in files),
    }
