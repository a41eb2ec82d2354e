"""What the doctor found, for the terminal: in each group what is wrong first, each with its remedy below."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from verl_ingest.checks.check import SEVERITY
from verl_ingest.checks.examine import Examined
from verl_ingest.show import checks

_WORDS = {"wrong": "wrong", "watch": "to watch", "unknown": "unknown", "fine": "fine"}


def render(found: Examined) -> RenderableType:
    """Return the counts, the groups, and what to do first."""
    return Group(_counts(found), *_groups(found), Text(), Text(found.first, style="bold"))


def _counts(found: Examined) -> Text:
    counts = [(found.count(verdict), verdict) for verdict in reversed(SEVERITY)]
    parts = [Text(f"{count} {_WORDS[verdict]}", style=checks.STYLES[verdict]) for count, verdict in counts if count]
    return Text(", ").join(parts)


def _groups(found: Examined) -> Iterator[RenderableType]:
    names = checks.width(found.checks)
    for group in found.groups:
        yield Text(f"\n{group.name}", style="bold")
        yield checks.table(group.checks, names=names)
