"""Log lines: one line each, under the day they are of."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from verl_ingest.context.lines import SEVERITY
from verl_ingest.context.words import pids, ranks

STYLES = {0: "dim", 1: "", 2: "yellow", 3: "red"}


def day(line: Mapping[str, Any]) -> str:
    """Return the day of a folded line, as the heading of the lines of that day."""
    return f"{line['time'][:10]} UTC"


def render(line: Mapping[str, Any], *, most: int | None = None) -> Text:
    """Return a folded line: time, level, ranks, host or process, text of `most` characters, how often."""
    level, message = line["level"] or "", line["message"]
    cut = 0 if most is None else len(message) - most
    text = Text(f"{line['time'][11:23]} ", style="dim")
    text.append(f"{level.upper()[:7]:7} ", style=STYLES[SEVERITY.get(level, 1)] or "not dim")
    where = ranks(line["ranks"]) if line["ranks"] else line["host"] or pids(line["pids"])
    text.append(f"{where:8} ", style="not dim cyan")
    text.append(message[:most] if cut > 0 else message, style="not dim")
    if cut > 0:
        text.append(f"… ({cut:,} more characters: --json shows them)", style="dim")
    if line["count"] > 1:
        last = line["last"][11:19] if line["last"][:10] == line["time"][:10] else line["last"][:19]
        text.append(f"  x{line['count']}, last {last}", style="dim")
    return text
