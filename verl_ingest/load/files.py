"""Which files a load reads, and to which run each belongs."""

import gzip
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from verl_ingest.errors import InputError
from verl_ingest.normalise.lua import Normaliser

# Rank logs, file logger and rollout dumps; consoles and Ray's worker files; also rotated (.1, -20260301) or compressed.
_LOG_NAME = re.compile(r"\.(jsonl|log|out|err)(\.\d+|-\d{8})*(\.gz)?$")
_HEAD = 8192


@dataclass(frozen=True)
class LogFile:
    """A log file, its run, and its path below the run folder (both go into the ids of its lines)."""

    path: Path
    run_id: str
    relative: str
    size: int
    modified_ns: int


@dataclass(frozen=True)
class Found:
    """The log files below some paths, and the files that are no logs by their names."""

    logs: tuple[LogFile, ...]
    ignored: tuple[Path, ...]


def discover(paths: Iterable[Path], normaliser: Normaliser, *, run: str | None = None) -> Found:
    """Return the log files below the given paths; `run` replaces the run's name, not the run folder.

    A file named by itself is read whatever its name. Raises InputError for a path that does not exist, holds no log,
    or can't be listed.
    """
    logs: dict[Path, LogFile] = {}
    ignored: list[Path] = []
    for given in paths:
        path = given.absolute()
        if not path.exists():
            raise InputError(f"{given}: no such file or folder; give the folder of a run or a log file.")
        folder = path if path.is_dir() else path.parent
        files = _walk(path) if path.is_dir() else [path]
        named = [file for file in files if file == path or _is_log(file)]
        if not named:
            looked_for = "*.jsonl, *.log, *.out and *.err, also rotated or .gz"
            raise InputError(f"{given}: no log file in this folder (looked for {looked_for}).")
        ignored += [file for file in files if file not in set(named)]
        for file in named:
            logs[file] = _describe(file, folder, normaliser, run)
    return Found(tuple(logs.values()), tuple(ignored))


def _walk(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename}: the folder can't be listed: {error.strerror}.")

    return sorted(
        Path(root, name) for root, _, names in os.walk(folder, onerror=refuse) for name in names if name[0] != "."
    )


def _is_log(path: Path) -> bool:
    """Tell a log by its name; *.log, *.out and *.err are also what programs call their binary files."""
    named = _LOG_NAME.search(path.name)
    if named is None or named[1] == "jsonl":
        return named is not None
    try:
        with gzip.open(path) if named[3] else path.open("rb") as file:
            return not is_binary(file.read(_HEAD))
    except (OSError, EOFError, zlib.error):  # the reader says what is wrong with it
        return True


def _describe(path: Path, folder: Path, normaliser: Normaliser, run: str | None) -> LogFile:
    run_id, relative = normaliser.locate(path) or (folder.name or "unnamed", str(path.relative_to(folder)))
    stat = path.stat()
    return LogFile(path, run or run_id, relative, stat.st_size, stat.st_mtime_ns)


def is_binary(head: bytes) -> bool:
    """Tell whether a file that starts so is no text: it has NUL bytes and does not begin as JSON does."""
    return b"\0" in head[:_HEAD] and not head.lstrip().startswith((b"{", b"["))
