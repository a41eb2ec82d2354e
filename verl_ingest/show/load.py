"""What a load did, for the terminal."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.load.files import Found
from verl_ingest.load.pipeline import Summary

_NAMED = 5  # runs and ignored files that are named; the rest is counted


def render(summary: Summary, found: Found) -> RenderableType:
    """Return the summary: how many lines became what, and why any was flagged or dropped."""
    runs = sorted({log.run_id for log in found.logs})
    speed = summary.lines / summary.seconds if summary.seconds else 0
    head = Text.assemble(
        ("Loaded ", ""),
        (plural(summary.lines, "line"), "bold"),
        f" of {plural(summary.files, 'file')} of {listed(runs)} in {summary.seconds:.1f} s ({speed:,.0f} lines/s)",
    )
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("documents", f"{summary.documents:,}", f"{summary.created:,} new, {summary.existing:,} there already")
    table.add_row("flagged", f"{summary.flagged:,}", counts(summary.flags))
    table.add_row("dropped", f"{sum(summary.dropped.values()):,}", counts(summary.dropped))
    if summary.unfinished:
        why = "without a newline at its end: left for the next load, or --final"
        table.add_row("unfinished", f"{summary.unfinished:,}", why)
    if summary.summarised or summary.not_summarised:
        table.add_row("summarised", f"{summary.summarised:,}", summary.not_summarised or "steps with records written")
    if found.ignored:
        table.add_row("not read", f"{len(found.ignored):,}", f"no log by name, or binary: {_names(found)}")
    return Group(head, table)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def counts(reasons: Mapping[str, int]) -> str:
    """Return reasons with their counts, the most frequent first."""
    ordered = sorted(reasons.items(), key=lambda reason: (-reason[1], reason[0]))
    return ", ".join(f"{name} {count:,}" for name, count in ordered)


def _names(found: Found) -> str:
    return listed([path.name for path in found.ignored])


def listed(names: list[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
