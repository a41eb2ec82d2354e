"""What retention finds and does, and the pins, for the terminal."""

from collections.abc import Mapping, Sequence

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from verl_ingest.context.words import DASH, counted
from verl_ingest.query.times import iso
from verl_ingest.retention.due import Limits, Verdict
from verl_ingest.retention.pins import Pin

_STYLES = {"due": "", "kept": "green", "failed": "red", "gone": "dim"}


def heading(limits: Limits, *, old: int, daily: int) -> str:
    """Return the sentences on how long indices are kept, and how many are older than that."""
    kept = ["for ever" if days is None else counted(days, "day") for days in (limits.records, limits.samples)]
    return f"Records are kept {kept[0]}, samples {kept[1]}. Old enough to go: {old:,} of {daily:,} daily indices."


def render(verdicts: Sequence[Verdict]) -> Table:
    """Return a row for each index that is old enough: when it was made, documents, size, what becomes of it."""
    table = _table("index", "made", "documents", "size", "verdict", right=("documents", "size"))
    for verdict in verdicts:
        index = verdict.index
        table.add_row(
            index.name,
            iso(index.made)[:10],
            DASH if index.documents is None else f"{index.documents:,}",
            DASH if index.size is None else decimal(index.size),
            Text("to be deleted" if verdict.word == "due" else said(verdict), style=_STYLES[verdict.word]),
        )
    return table


def said(verdict: Verdict) -> str:
    """Return the verdict with its reason."""
    words = {"gone": "gone already", "failed": "not deleted"}
    return ": ".join(filter(None, (words.get(verdict.word, verdict.word), verdict.why)))


def done(verdicts: Sequence[Verdict], summaries: int) -> str:
    """Return the sentence on what was deleted: indices, and step summaries of days that are gone."""
    some = "1 step summary" if summaries == 1 else f"{summaries:,} step summaries"
    also = f"; {some} of days that are gone" if summaries else ""
    return f"Deleted {_sum(verdicts, 'deleted')}{also}."


def would(verdicts: Sequence[Verdict]) -> str:
    """Return the sentence on what a run without --dry-run would do."""
    return f"Dry run, nothing was deleted. To be deleted: {_sum(verdicts, 'due')}."


def plural(count: int) -> str:
    """Write `1 index`, `2 indices`."""
    return f"{count:,} {'index' if count == 1 else 'indices'}"


def pins(found: Sequence[Pin], records: Mapping[str, Mapping[str, int]]) -> Table:
    """Return a row for each pinned run; `records` says how many documents each index has of each run."""
    table = _table("run", "pinned", "documents", "indices", "why", right=("documents", "indices"))
    for pin in found:
        counts = [runs[pin.run_id] for runs in records.values() if pin.run_id in runs]
        table.add_row(pin.run_id, pin.since[:10], f"{sum(counts):,}", f"{len(counts):,}", pin.why or "")
    return table


def _sum(verdicts: Sequence[Verdict], word: str) -> str:
    found = [verdict.index for verdict in verdicts if verdict.word == word]
    if not found:
        return "no index"
    documents, size = (
        sum(filter(None, numbers)) for numbers in zip(*((i.documents, i.size) for i in found), strict=True)
    )
    return f"{plural(len(found))} ({counted(documents, 'document')}, {decimal(size)})"


def _table(*headings: str, right: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table
