"""What the texts of settings may be: each kind is checked, and refused with what it should be."""

import re
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.username is not None:
        raise ValueError("user and password have settings of their own, leave them out of the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("it should be a URL such as https://es.example.org:9200")
    return value.rstrip("/")


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("it should be a zone of the IANA time zone database such as Asia/Shanghai") from None
    return value


def _run_path(value: str) -> str:
    if not value.startswith("/") or value.count("{run}") != 1:
        raise ValueError("it should be an absolute path with {run} in it once, such as /data/runs/{run}/logs/*.jsonl")
    return _path(value)


def _path(value: str) -> str:
    if not value.startswith("/") or "**" in value or "," in value:
        raise ValueError("it should be an absolute path; * matches within one folder, a comma can't be in it")
    return value


def _size(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[KMG]", value):
        raise ValueError("it should be a size such as 512M or 5G")
    return value


def name_like(example: str, pattern: str) -> AfterValidator:
    """Return what lets only names of a pattern pass."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"it should be a name such as {example}")
        return value

    return AfterValidator(check)


def split(value: Any) -> Any:
    """Split the environment's one string as PATH is split; a list of the file stays as it is."""
    return value.split(":") if isinstance(value, str) else value


def split_words(value: Any) -> Any:
    """Split the environment's one string at commas; addresses have colons of their own."""
    return value.split(",") if isinstance(value, str) else value


Url = Annotated[str, AfterValidator(_url)]
Zone = Annotated[str, AfterValidator(_zone)]
AbsolutePath = Annotated[str, AfterValidator(_path)]
Size = Annotated[str, AfterValidator(_size)]
RunPaths = Annotated[tuple[Annotated[str, AfterValidator(_run_path)], ...], BeforeValidator(split)]
AnyPaths = Annotated[tuple[AbsolutePath, ...], BeforeValidator(split)]
Name = Annotated[str, Field(min_length=1)]
Account = Annotated[str, name_like("verl-ingest", "[a-z_][a-z0-9_-]*")]  # of a user or group of the system
