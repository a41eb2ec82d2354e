"""Log lines and stack traces of a step, errors and lines in one order of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.context.lines import SEVERITY
from verl_ingest.context.words import pids, ranges, ranks

MOST_LINES = 250
MOST_STACKS = 20
MESSAGE = 2_000
STACK = 20_000
WARNING, ERROR = 2, 3


@dataclass(frozen=True)
class LogLine:
    """One folded line; `severity` is 0 (debug) to 3 (error), `on` its ranks as `0-3,7`."""

    time: str
    severity: int
    level: str
    who: str
    on: str
    source: str
    message: str
    count: int
    stack: str


@dataclass(frozen=True)
class LogLines:
    """The lines to show; `left_out` more are in the JSON."""

    lines: tuple[LogLine, ...]
    left_out: int
    ranks: tuple[int, ...]


def show(body: Mapping[str, Any]) -> LogLines:
    """Return errors and lines in order of time, without the lines that a stack trace holds.

    Of too many the mildest and last are left out.
    """
    stacked = {line.strip() for error in body["errors"] for line in (error["stack_trace"] or "").split("\n")}
    entries = [*body["errors"], *(line for line in body["logs"] if line["message"].strip() not in stacked)]
    worst = sorted(range(len(entries)), key=lambda number: (-_severity(entries[number]), number))[:MOST_LINES]
    shown = sorted((entries[number] for number in worst), key=lambda entry: entry["time"])
    stacks = [entry for entry in shown if entry.get("stack_trace")][:MOST_STACKS]
    return LogLines(
        lines=tuple(_line(entry, stack=any(entry is each for each in stacks)) for entry in shown),
        left_out=len(entries) - len(shown),
        ranks=tuple(sorted({rank for entry in shown for rank in entry["ranks"]})),
    )


def _severity(entry: Mapping[str, Any]) -> int:
    return ERROR if "stack_trace" in entry else SEVERITY.get(entry["level"] or "", 1)


def _line(entry: Mapping[str, Any], *, stack: bool) -> LogLine:
    return LogLine(
        time=entry["time"],
        severity=_severity(entry),
        level="error" if "stack_trace" in entry else entry["level"] or "",
        who=_who(entry),
        on=",".join(ranges(entry["ranks"])).replace("\u2013", "-"),
        source=entry["source"] or "",
        message=_cut(entry["message"], MESSAGE),
        count=entry["count"],
        stack=_cut(entry["stack_trace"], STACK) if stack else "",
    )


def _who(entry: Mapping[str, Sequence[int]]) -> str:
    return ranks(entry["ranks"]) if entry["ranks"] else pids(entry["pids"])


def _cut(text: str, most: int) -> str:
    """Cut a long text in its middle: how it begins and how it ends both tell."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n\u2026 {len(text) - most:,} characters left out \u2026\n{text[-(most // 2) :]}"
