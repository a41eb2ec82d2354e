"""Verdicts, one line each, what to do below those that are not fine."""

from collections.abc import Iterable, Iterator

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from verl_ingest.checks.check import Check

STYLES = {"fine": "green", "watch": "yellow", "wrong": "red", "unknown": "dim"}
_WIDTH = max(map(len, STYLES)) + 2


def lines(checks: Iterable[Check]) -> Group:
    """Return the verdict, the name and what was found of each check, and the remedy of those that have one."""
    return Group(*(part for check in checks for part in _parts(check)))


def _parts(check: Check) -> Iterator[Text | Padding]:
    verdict = f"{check.verdict:<{_WIDTH}}"
    yield Text.assemble((verdict, STYLES[check.verdict]), (f"{check.name}: ", "bold"), check.found)
    if check.remedy:
        yield Padding(Text(check.remedy, style="dim"), (0, 0, 0, _WIDTH))
