"""How far each log file is read: the bytes on disk against the offsets in the agent's databases."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from glob import iglob
from pathlib import Path

from verl_ingest.edge import fluentbit
from verl_ingest.errors import InputError
from verl_ingest.lag.facts import Tailed
from verl_ingest.settings import Settings

_BLOCK = 1 << 16


def read(settings: Settings, *, now: float) -> list[Tailed]:
    """Return every file that the configured paths match; `now` is in seconds since 1970.

    Raises InputError where the agent's folder or a database in it can't be read.
    """
    folder = state_folder(settings)
    found = []
    for tail in fluentbit.inputs(settings):
        saved = _saved(folder / f"{tail['family']}.db")
        found += [_tailed(file, tail["family"], saved, now) for file in _files(tail["path"].split(","))]
    return found


def state_folder(settings: Settings) -> Path:
    """Return the agent's folder; raises InputError where it is not there or can't be listed."""
    folder = Path(settings.agent.state)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; start the agent, or set agent.state to the folder that it uses.")
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{folder}: the agent's folder can't be read; run this as the agent's user.")
    return folder


def _saved(database: Path) -> dict[int, int]:
    """Return inode -> offset of the files that an input knows; none where it was never started."""
    if not database.exists():
        return {}
    # Without a running agent there is no -wal file, and to make one would need the right to write.
    mode = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?{mode}", uri=True)) as connection:
            return dict(connection.execute("SELECT inode, offset FROM in_tail_files ORDER BY id"))
    except sqlite3.Error as error:
        raise InputError(
            f"{database}: the agent's offsets can't be read ({error}); run this as the agent's user, "
            "or is it another program's file?"
        ) from None


def _files(patterns: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    for pattern in patterns:
        for path in iglob(pattern):
            try:
                stat = os.stat(path)
            except OSError:  # gone meanwhile
                continue
            yield path, stat


def _tailed(file: tuple[str, os.stat_result], family: str, saved: Mapping[int, int], now: float) -> Tailed:
    path, stat = file
    offset = saved.get(stat.st_ino)
    start = offset if offset is not None and offset <= stat.st_size else 0  # a rewritten file is read from its start
    unread = _whole_lines(path, start, stat.st_size) - start
    return Tailed(path, family, stat.st_size, offset, unread, max(now - stat.st_mtime, 0))


def _whole_lines(path: str, start: int, end: int) -> int:
    """Return the offset behind the last newline between two offsets, the first of them where there is none."""
    try:
        with open(path, "rb") as file:
            while end > start:
                begin = max(end - _BLOCK, start)
                file.seek(begin)
                newline = file.read(end - begin).rfind(b"\n")
                if newline >= 0:
                    return begin + newline + 1
                end = begin
    except OSError:  # the agent may be allowed to read what we are not
        return end
    return start
