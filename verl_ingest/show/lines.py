"""Log lines in a terminal: one line each, whole, so that a pipe gets what was written."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from verl_ingest.context.lines import SEVERITY
from verl_ingest.context.words import pids, ranks

STYLES = {0: "dim", 1: "", 2: "yellow", 3: "red"}


def render(line: Mapping[str, Any]) -> Text:
    """Return a folded line: time, level, ranks, host or process, text, how often."""
    level = line["level"] or ""
    text = Text(f"{line['time'][11:23]} ", style="dim")
    text.append(f"{level.upper()[:7]:7} ", style=STYLES[SEVERITY.get(level, 1)] or "not dim")
    where = ranks(line["ranks"]) if line["ranks"] else line["host"] or pids(line["pids"])
    text.append(f"{where:8} ", style="not dim cyan")
    text.append(line["message"], style="not dim")
    if line["count"] > 1:
        text.append(f"  x{line['count']}, last {line['last'][11:19]}", style="dim")
    return text
