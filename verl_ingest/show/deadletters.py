"""What the agent gave up sending, for the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from verl_ingest.deadletters.letters import Letter, moment
from verl_ingest.show.load import counts, listed, plural

_NAMED_FILES = 20


def render(letters: Sequence[Letter]) -> RenderableType:
    """Return a row a file, the oldest first, then what is wrong with files and what became of them."""
    return Group(_head(letters), _table(letters[:_NAMED_FILES]), *_notes(letters))


def _head(letters: Sequence[Letter]) -> Text:
    records = plural(sum(letter.records for letter in letters), "record")
    return Text.assemble((records, "bold"), f" in {plural(len(letters), 'rejected file')} (times are UTC)")


def _table(letters: Sequence[Letter]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("file", overflow="fold")
    table.add_column("rejected", no_wrap=True)
    table.add_column("records", justify="right", no_wrap=True)
    table.add_column("their time", no_wrap=True)
    table.add_column("in the index", justify="right", no_wrap=True)
    for letter in letters:
        about = f"to output {letter.output}, of {listed(sorted(letter.runs))}" if letter.runs else ""
        table.add_row(
            Text.assemble(letter.path.name, (f"\n{about}", "dim")),
            _time(letter.modified_ns).replace(" ", "\n"),
            Text.assemble(f"{letter.records:,}", (f"\n{decimal(letter.size)}", "dim")),
            "\n".join(_time(time) for time in (letter.first, letter.last) if time is not None),
            _state(letter),
        )
    return table


def _state(letter: Letter) -> Text:
    if letter.stored is None or letter.missing is None:
        return Text("not asked", style="dim")
    state = Text(f"{letter.stored:,}")
    if letter.created:
        state.append(f"\n{letter.created:,} new", style="green")
    if letter.missing:
        state.append(f"\n{letter.missing:,} missing", style="red")
    return state


def _notes(letters: Sequence[Letter]) -> Iterator[Text]:
    if len(letters) > _NAMED_FILES:
        yield Text(f"and {len(letters) - _NAMED_FILES:,} more files; --json names all")
    for letter in letters:
        if letter.error:
            yield Text(letter.error, style="red", overflow="fold")
        if letter.refused:
            yield Text(f"{letter.path}: refused, {counts(letter.refused)}", style="red", overflow="fold")
    if any(letter.missing for letter in letters) and not any(letter.refused for letter in letters):
        yield Text(
            "Fluent Bit does not record why; --replay sends what is missing, and says what is refused.", style="dim"
        )
    if removed := sum(letter.removed for letter in letters):
        yield Text(f"Removed {plural(removed, 'file')}, all of whose records are in the index.")
    if settled := sum(letter.is_settled and not letter.removed for letter in letters):
        yield Text(f"All records of {plural(settled, 'file')} are in the index; --remove removes such files.")


def _time(time_ns: int) -> str:
    return moment(time_ns)[:19].replace("T", " ")
