"""Checks as a table: what is wrong first, each with its remedy below."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from verl_ingest.checks.check import SEVERITY, Check

STYLES = {"wrong": "bold red", "watch": "yellow", "unknown": "magenta", "fine": "green"}


def table(checks: Sequence[Check], *, names: int) -> Table:
    """Return a line a check, and one more for its remedy; the names of the checks have so many columns."""
    lines = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    lines.add_column(width=max(map(len, STYLES)))
    lines.add_column(width=names)
    lines.add_column(overflow="fold")
    for check in sorted(checks, key=lambda check: -SEVERITY.index(check.verdict)):
        lines.add_row(Text(check.verdict, style=STYLES[check.verdict]), check.name, _found(check))
    return lines


def width(checks: Sequence[Check]) -> int:
    """Return how many columns the longest name takes."""
    return max(len(check.name) for check in checks)


def _found(check: Check) -> Text:
    is_fine = check.verdict == "fine"
    text = Text(check.found, style="dim" if is_fine else "")
    return text.append(f"\n→ {check.remedy}", style="cyan") if check.remedy else text
