"""What tests of audits share: lines of logs, and what must be true of every report."""

import base64
import json
from typing import Any

from verl_ingest.audit.balance import Report
from verl_ingest.settings import Settings

SETTINGS = Settings(timezone="Etc/UTC")
SECOND = 1_000_000_000
START = 1_772_380_800 * SECOND  # 2026-03-01T16:00:00Z


def line(step: int, **fields: Any) -> bytes:
    record = {"step": step, "rank": 0, "loss": 0.5, "timestamp_ns": START + step * SECOND, **fields}
    return json.dumps(record).encode() + b"\n"


def assert_adds_up(report: Report) -> None:
    for numbers in [report.as_json(), *(file.as_json() for file in report.files)]:
        parts = ("indexed", "missing", "same_id", "unfinished")
        assert numbers["lines"] == sum(numbers[part] for part in parts) + sum(numbers["dropped"].values())


def offset_of(event_id: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(event_id)[6:11], "big")
