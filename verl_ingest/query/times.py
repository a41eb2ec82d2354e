"""Times: documents carry ISO texts with nanoseconds, searches whole milliseconds since 1970, people durations."""

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from verl_ingest.errors import InputError

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def seconds(document: Mapping[str, Any]) -> float:
    """Return a document's `@timestamp` as seconds since 1970, exact to a microsecond."""
    text = document["@timestamp"]
    return _whole_seconds(text[:19]) + float(f"0{text[19:-1]}" if text[19:20] == "." else 0)


def milliseconds(document: Mapping[str, Any]) -> int:
    """Return a document's `@timestamp` in whole milliseconds since 1970, rounded down as the server does."""
    text = document["@timestamp"]
    return _whole_seconds(text[:19]) * 1_000 + int((text[20:-1] + "000")[:3])


def iso(ms: float) -> str:
    """Write milliseconds since 1970 as an ISO 8601 text in UTC."""
    return datetime.fromtimestamp(ms / 1_000, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_duration(text: str) -> int:
    """Read `90s`, `5m`, `1h`, `2d` or `1w` as milliseconds; raises InputError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip())
    if match is None:
        raise InputError(f"'{text}' is not a duration; write a number and a unit, such as 90s, 5m, 1h or 2d.")
    return int(float(match[1]) * _UNITS[match[2]] * 1_000)


def parse_time(text: str) -> int:
    """Read an ISO 8601 time as milliseconds since 1970, UTC where it has no zone; raises InputError."""
    try:
        time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text.strip()).replace("Z", "+00:00"))
    except ValueError:
        raise InputError(f"'{text}' is not a time; write it as 2026-03-01T16:25:00 (UTC) or with a zone.") from None
    return int((time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp() * 1_000)


@lru_cache(maxsize=1_024)
def _whole_seconds(text: str) -> int:
    """Read the time without its fraction; the documents of a step share few of them."""
    return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())
