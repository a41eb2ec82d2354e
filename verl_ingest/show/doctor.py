"""What the doctor found, for the terminal: in each group what is wrong first, each with its remedy below."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.checks.check import SEVERITY, Check
from verl_ingest.checks.examine import Examined

STYLES = {"wrong": "bold red", "watch": "yellow", "unknown": "magenta", "fine": "green"}
_WORDS = {"wrong": "wrong", "watch": "to watch", "unknown": "unknown", "fine": "fine"}


def render(found: Examined) -> RenderableType:
    """Return the counts, the groups, and what to do first."""
    return Group(_counts(found), *_groups(found), Text(), Text(found.first, style="bold"))


def _counts(found: Examined) -> Text:
    counts = [(found.count(verdict), verdict) for verdict in reversed(SEVERITY)]
    parts = [Text(f"{count} {_WORDS[verdict]}", style=STYLES[verdict]) for count, verdict in counts if count]
    return Text(", ").join(parts)


def _groups(found: Examined) -> Iterator[RenderableType]:
    widest = max(len(check.name) for check in found.checks)
    for group in found.groups:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(width=max(map(len, STYLES)))
        table.add_column(width=widest)
        table.add_column(overflow="fold")
        for check in sorted(group.checks, key=lambda check: -SEVERITY.index(check.verdict)):
            table.add_row(Text(check.verdict, style=STYLES[check.verdict]), check.name, _found(check))
        yield Text(f"\n{group.name}", style="bold")
        yield table


def _found(check: Check) -> Text:
    is_fine = check.verdict == "fine"
    text = Text(check.found, style="dim" if is_fine else "")
    return text.append(f"\n→ {check.remedy}", style="cyan") if check.remedy else text
