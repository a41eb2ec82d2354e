"""The balance of an audit, for the terminal."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.audit.balance import Balance, Report
from verl_ingest.show.load import counts, listed

_NAMED_FILES = 5  # with missing lines; the rest is counted
_LINE = 80  # characters of a line


def render(report: Report) -> RenderableType:
    """Return the balance, then the first missing lines of each file."""
    numbers = report.numbers()
    runs = sorted({file.log.run_id for file in report.files})
    speed = numbers["lines"] / report.seconds if report.seconds else 0
    head = Text.assemble(
        "Audited ",
        (f"{numbers['lines']:,} lines", "bold"),
        f" of {len(report.files):,} files of {listed(runs)} in {report.seconds:.1f} s ({speed:,.0f} lines/s)",
    )
    return Group(head, _balance(report), *_missing(report))


def _balance(report: Report) -> Table:
    numbers = report.numbers()
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    flagged = counts(numbers["flagged"])
    table.add_row("indexed", f"{numbers['indexed']:,}", f"flagged: {flagged}" if flagged else "")
    table.add_row("dropped", f"{sum(numbers['dropped'].values()):,}", counts(numbers["dropped"]))
    table.add_row("missing", f"{numbers['missing']:,}", "", style="red" if numbers["missing"] else "green")
    if numbers["same_id"]:
        table.add_row(
            "same id", f"{numbers['same_id']:,}", "equal lines at the same place of a rotated file: one document"
        )
    if numbers["unfinished"]:
        why = "last lines without a newline: not asked for"
        table.add_row("unfinished", f"{numbers['unfinished']:,}", why)
    if numbers["in_two_days"]:
        why = "of the indexed: in more than one day's index; --repair removes the later one"
        table.add_row("in two days", f"{numbers['in_two_days']:,}", why, style="yellow")
    if repaired := sum(file.repaired for file in report.files):
        table.add_row("repaired", f"{repaired:,}", "shipped, or removed from a second day's index")
    return table


def _missing(report: Report) -> Iterator[Text]:
    files = [file for file in report.files if file.missing]
    for file in files[:_NAMED_FILES]:
        yield Text(
            f"\n{file.log.path}: {file.missing:,} of {file.lines:,} lines missing", style="red", overflow="ignore"
        )
        yield from _lines(file)
    if len(files) > _NAMED_FILES:
        yield Text(f"\nand {len(files) - _NAMED_FILES:,} more files; --json names every missing line")


def _lines(file: Balance) -> Iterator[Text]:
    for offset, line in file.first_missing:
        yield Text(f"{file.log.path}:{offset}", no_wrap=True, overflow="ignore")
        yield Text("  " + _printable(line[:_LINE]), style="dim", overflow="fold")
    if file.missing > len(file.first_missing):
        yield Text(f"  and {file.missing - len(file.first_missing):,} more", style="dim")


def _printable(line: str) -> str:
    return "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in line)
