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
_TEXT = bytes({7, 8, 9, 10, 12, 13, 27} | set(range(0x20, 0x7F)) | set(range(0x80, 0x100)))


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
    """The log files below some paths, and the files that are no logs: by name, or binary."""

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
        if path.is_dir() and run is None and (runs := _runs_below(path, named, normaliser)):
            raise InputError(
                f"{given}: this holds several runs ({', '.join(runs)}), and a folder is loaded as one; "
                "give the folders of the runs, or --run NAME to make them one run all the same."
            )
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


def _runs_below(folder: Path, logs: list[Path], normaliser: Normaliser) -> list[str]:
    """Return the sub-folders that look like runs of their own: two of them hold a log of the same path and name.

    Dumps do not count, whose names are steps; nor do logs whose run the setting `paths` says.
    """
    holders: dict[Path, list[str]] = {}
    for log in logs:
        first, *below = log.relative_to(folder).parts
        if below and not log.stem.isdigit() and normaliser.locate(log) is None:
            holders.setdefault(Path(*below), []).append(first)
    return sorted({name for names in holders.values() if len(names) > 1 for name in names})


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
    try:
        stat = path.stat()
    except OSError:  # a link that leads nowhere, or gone meanwhile: the reader says so
        return LogFile(path, run or run_id, relative, 0, 0)
    return LogFile(path, run or run_id, relative, stat.st_size, stat.st_mtime_ns)


def is_binary(head: bytes) -> bool:
    """Tell whether a file that starts so is no text: control characters are over a twentieth of it, NULs among them.

    What begins as JSON does is a log, whatever a crash left in it.
    """
    head = head[:_HEAD]
    if b"\0" not in head or head.lstrip().startswith((b"{", b"[")):
        return False
    return 20 * len(head.translate(None, delete=_TEXT)) > len(head)
