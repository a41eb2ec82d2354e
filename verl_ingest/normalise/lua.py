"""The normaliser in LuaJIT: blocks of log lines in, bodies of `_bulk` requests out."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lupa.luajit21

from verl_ingest import assets
from verl_ingest.errors import SettingsError
from verl_ingest.normalise import lua_settings
from verl_ingest.settings import Settings

_LOAD = b"local path, settings = ...; return assert(loadfile(path))(assert(loadstring(settings))())"


@dataclass(frozen=True)
class Fallback:
    """The time that a line without one gets: nanoseconds since 1970, and its `time_source`."""

    nanoseconds: int
    source: str


@dataclass(frozen=True)
class Undated:
    """A document whose line has no time of its own: it may stand in another day's index already."""

    index: str
    event_id: str
    document: bytes

    def action(self) -> bytes:
        """Return the two lines that write it in a `_bulk` request."""
        return b'{"index":{"_index":"%b","_id":"%b"}}\n%b' % (
            self.index.encode(),
            self.event_id.encode(),
            self.document,
        )


@dataclass(frozen=True)
class Block:
    """What a block of lines became: counts, the `_bulk` body of the dated documents, and the undated ones."""

    lines: int
    documents: int
    flagged: int
    flags: Mapping[str, int]
    dropped: Mapping[str, int]
    dated: bytes
    undated: tuple[Undated, ...]


class Normaliser:
    """One Lua state; use it from one thread at a time (it gives up Python's global lock while it runs)."""

    def __init__(self, settings: Settings) -> None:
        if settings.node_scope and not settings.node:
            raise SettingsError("node_scope is set, but not which node's files these are; give --node NAME.")
        self._lua = lupa.luajit21.LuaRuntime(encoding=None)
        entry = str(assets.path("deploy/fluent-bit/normalize.lua")).encode()
        self._lua.execute(_LOAD, entry, lua_settings.render(settings).encode())
        entries = self._lua.globals()
        self._locate, self._open, self._batch = (
            entries.normalize_locate,
            entries.normalize_open,
            entries.normalize_batch,
        )

    def locate(self, path: Path) -> tuple[str, str] | None:
        """Return the run and the path below its folder, where the setting `run_paths` matches an absolute path."""
        found = self._locate(os.fsencode(path))
        return (os.fsdecode(found[0]), os.fsdecode(found[1])) if found else None

    def open(self, path: Path, *, run_id: str, relative: str) -> Any:
        """Return the handle of a file whose run and path below the run folder are known."""
        return self._open(os.fsencode(path), os.fsencode(run_id), os.fsencode(relative))

    def path_of(self, file: Any) -> str:
        """Return the path that goes into the ids of a file's lines: files that differ by rotation only share it."""
        return os.fsdecode(file[b"path"])

    def block(self, file: Any, lines: bytes, *, offset: int, fallback: Fallback) -> Block:
        """Normalise whole lines, each ended by a newline, the first at that byte offset of the file."""
        seconds, nanoseconds = divmod(fallback.nanoseconds, 1_000_000_000)
        result = self._batch(file, lines, offset, seconds, nanoseconds, fallback.source.encode())
        return Block(
            lines=result[b"lines"],
            documents=result[b"documents"],
            flagged=result[b"flagged"],
            flags=_counts(result[b"flags"]),
            dropped=_counts(result[b"dropped"]),
            dated=result[b"dated"],
            undated=tuple(Undated(u[1].decode(), u[2].decode(), u[3]) for u in result[b"undated"].values()),
        )


def _counts(table: Any) -> dict[str, int]:
    return {name.decode(): count for name, count in table.items()}
