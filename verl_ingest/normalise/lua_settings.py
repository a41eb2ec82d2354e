"""The settings that the normaliser needs, as the Lua table deploy/fluent-bit/settings.lua."""

from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from verl_ingest.settings import Settings

# What tail's buffer_max_size is rendered with: a longer line is cut, by the agent and by the loader.
LINE_BYTES = 8 * 1024 * 1024

FIRST_YEAR, LAST_YEAR = 2015, 2050  # no verl run is older


def render(settings: Settings) -> str:
    """Return the text of settings.lua."""
    table = {
        "run": settings.run,
        "run_paths": list(settings.run_paths),
        "node": settings.node,
        "node_paths": node_paths(settings) or None,
        "line_bytes": LINE_BYTES,
        "samples": {"text_per_step": settings.samples.text_per_step},
        "drop": [rule.model_dump() for rule in settings.drop],
        "utc_offsets": utc_offsets(settings.timezone) if settings.timezone else None,
    }
    return f"-- Rendered from settings.yml; edit that.\nreturn {_lua(table)}\n"


def node_paths(settings: Settings) -> list[str]:
    """Return the configured paths that mean other files on every node; "all" stands for any path."""
    if "all" in settings.node_scope:
        return ["all"]
    return [path for family in settings.node_scope for path in getattr(settings.paths, family)]


@cache  # thousands of look-ups, and every thread's normaliser asks for the same zone
def utc_offsets(zone: str) -> list[list[int]]:
    """Return [local seconds since 1970 from which it holds, offset in seconds] for each change of a zone, ascending.

    Lua has no zone data, so the changes of the years in which runs can lie are written out. The first entry holds
    from the beginning. An hour that a clock runs through twice is read as its second run.
    """
    info = ZoneInfo(zone)
    moment = datetime(FIRST_YEAR, 1, 1, tzinfo=timezone.utc)
    end = datetime(LAST_YEAR, 1, 1, tzinfo=timezone.utc)
    offset = _offset(info, moment)
    changes = [[0, offset]]
    while moment < end:
        following = moment + timedelta(days=1)
        if _offset(info, following) != offset:
            change = _change(info, moment, following)
            offset = _offset(info, following)
            changes.append([int(change.timestamp()) + offset, offset])
        moment = following
    return changes


def _offset(info: ZoneInfo, moment: datetime) -> int:
    return int(moment.astimezone(info).utcoffset().total_seconds())


def _change(info: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first second of the new offset between two moments around one change."""
    old = _offset(info, before)
    while after - before > timedelta(seconds=1):
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        before, after = (middle, after) if _offset(info, middle) == old else (before, middle)
    return after


def _lua(value: Any, indent: str = "") -> str:
    """Return a value as a Lua literal; what is None is left out of a table."""
    if isinstance(value, dict):
        inner = indent + "  "
        lines = [f"{inner}{key} = {_lua(item, inner)},\n" for key, item in value.items() if item is not None]
        return "{\n" + "".join(lines) + indent + "}"
    if isinstance(value, list):
        return "{ " + ", ".join(_lua(item, indent) for item in value) + " }"
    if isinstance(value, str):
        return '"' + "".join(_lua_byte(byte) for byte in value.encode()) + '"'
    return str(value)


def _lua_byte(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}"
