"""What was written: every line of a run has a number, and what its document must hold follows from that."""

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

START = datetime(2026, 3, 1, 23, 59, 50, tzinfo=timezone.utc)  # near midnight: the lines go to two days' indices
BURSTS = 20  # that a share of lines is written in
_LONGEST = 4096  # bytes of a line, at most
_TRIES = 50  # files that are made to get at a certain inode
_NOTE = "第{}行 · déjà vu 🚀 "


def text(number: int, rank: int) -> bytes:
    """Return a line as it is written."""
    nanoseconds = int(START.timestamp()) * 10**9 + number * 10**6
    record = {
        "step": number,
        "stage": "actor",
        "rank": rank,
        "metric_name": "actor_loss",
        "value": number / 8,
        "timestamp_ns": nanoseconds,
        "note": note(number),
    }
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def document(number: int, rank: int) -> dict[str, Any]:
    """Return what the line's document must hold, of what `text` puts into it."""
    moment = START + timedelta(milliseconds=number)
    return {
        "@timestamp": f"{moment:%Y-%m-%dT%H:%M:%S.%f}000Z",
        "kind": "metric",
        "stage": "actor",
        "rank": rank,
        "metric_name": "actor_loss",
        "value": number / 8,
        "extra": {"note": note(number)},
    }


def note(number: int) -> str:
    """Return characters of one to four bytes; every seventh line has many more, so that the lengths differ."""
    return _NOTE.format(number) + ("x" * (number % 911) if number % 7 == 0 else "")


def end_of_lines(path: Path) -> int:
    """Return the offset behind the last newline of a file."""
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - _LONGEST)
        file.seek(start)
        return start + file.read().rfind(b"\n") + 1


@dataclass
class Ledger:
    """Every line that was written whole, by its number: the rank that wrote it."""

    written: dict[int, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)


class Log:
    """One rank's log file, and what its writer and a rotation do to it."""

    def __init__(self, path: Path, rank: int, ledger: Ledger) -> None:
        self.path, self.rank, self._ledger = path, rank, ledger

    def write(self, lines: int, *, mode: str = "ab") -> None:
        """Write lines at once; with mode `wb` what was in the file goes first."""
        with self.path.open(mode) as file:
            file.write(b"".join(self._next() for _ in range(lines)))

    def write_slowly(self, lines: int, seconds: float, random: Random) -> None:
        """Write lines in bursts over about that many seconds."""
        for burst in range(BURSTS):
            self.write(len(range(burst, lines, BURSTS)))
            time.sleep(2 * seconds / BURSTS * random.random())

    def write_half(self) -> bytes:
        """Write the first half of a line, cut inside a character of several bytes; return the other half."""
        line = self._next()
        middle = line.index("第".encode()) + 1
        self.finish(line[:middle])
        return line[middle:]

    def finish(self, rest: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(rest)

    def _next(self) -> bytes:
        number = next(self._ledger.numbers)
        self._ledger.written[number] = self.rank
        return text(number, self.rank)

    def rotate(self) -> None:
        """Rename the file to .1, what was .1 to .2, and so on; the next line begins a new file."""
        if self.path.exists():
            self._make_room()
            self.path.rename(self._rotated(1))

    def copytruncate(self) -> None:
        """Copy the file to .1 and empty it, as logrotate's `copytruncate` does."""
        self._make_room()
        shutil.copyfile(self.path, self._rotated(1))
        os.truncate(self.path, 0)

    def remove(self) -> int:
        """Remove the file and return the inode that it had."""
        inode = self.path.stat().st_ino
        self.path.unlink()
        return inode

    def create(self, inode: int) -> bool:
        """Make the file anew, with that inode if the file system gives it away again; tell whether it did."""
        made: list[Path] = []
        while not (made and made[-1].stat().st_ino == inode) and len(made) < _TRIES:
            made.append(self.path.with_name(f"attempt-{len(made)}"))  # no name that the agent tails
            made[-1].touch()
        made.pop().rename(self.path)
        for other in made:
            other.unlink()
        return self.path.stat().st_ino == inode

    def _make_room(self) -> None:
        last = next(number for number in itertools.count(1) if not self._rotated(number).exists())
        for number in range(last, 1, -1):
            self._rotated(number - 1).rename(self._rotated(number))

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
