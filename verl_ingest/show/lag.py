"""How far the agent is behind, for the terminal."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from verl_ingest.context.words import counted, duration
from verl_ingest.lag.facts import Agent, Facts

_ROWS = 10  # of a table; the rest is counted


def render(facts: Facts, problems: Sequence[str]) -> RenderableType:
    """Return the verdict, then what it rests on."""
    return Group(*_verdict(facts, problems), *_files(facts), *_waiting(facts), *_agent(facts.agent), *_newest(facts))


def _verdict(facts: Facts, problems: Sequence[str]) -> Iterator[Text]:
    for problem in problems:
        yield Text(problem, style="red", overflow="ignore")
    if not problems:
        is_taken = facts.agent and facts.agent.delivered and not facts.waiting
        rest = "Elasticsearch takes what is sent" if is_taken else "nothing waits for long"
        yield Text(f"Fine: the logs are read, and {rest}.", style="green")


def _files(facts: Facts) -> Iterator[RenderableType]:
    if not facts.files:
        if not facts.troubles:
            yield Text("\nNo file matches the setting `paths`.", style="bold")
        return
    unread = facts.unread
    read = counted(len(facts.files) - len(unread), "file")
    yield Text(f"\n{read} read to the end, {len(unread):,} not", style="bold")
    for file in unread[:_ROWS]:
        yield Text(file.path, no_wrap=True, overflow="ignore")  # a line of its own: to be copied whole
        new = "" if file.offset is not None else ", not known to the agent yet"
        numbers = f"{decimal(file.unread)} unread of {decimal(file.size)}{new}, written {duration(file.idle_s)} ago"
        yield Text(f"  {numbers}", style="dim")
    yield from _rest(len(unread))


def _waiting(facts: Facts) -> Iterator[RenderableType]:
    if not facts.waiting:
        return
    table = _table("waits, by input", ("bytes", "chunks", "oldest"))
    for each in facts.waiting:
        table.add_row(each.input, decimal(each.bytes), f"{each.chunks:,}", duration(each.oldest_s))
    yield Text()
    yield table


def _agent(agent: Agent | None) -> Iterator[Text]:
    if agent is None:
        return
    counts = ", ".join(
        (
            f"{counted(agent.delivered, 'record')} delivered",
            f"{agent.dropped:,} dropped",
            f"{counted(agent.truncated, 'long line')} cut",
            f"sent again {agent.retries:,} times",
            counted(agent.errors, "error"),
        )
    )
    paused = f"; does not read now: {', '.join(agent.paused)}" if agent.paused else ""
    yield Text(f"\nFluent Bit {agent.version}, up for {duration(agent.uptime_s)}: {counts}{paused}", overflow="fold")


def _newest(facts: Facts) -> Iterator[RenderableType]:
    if not facts.newest:
        return
    table = _table("newest record of run", ("host", "is of"))
    for each in facts.newest[:_ROWS]:
        table.add_row(each.run_id, each.host or "not named", f"{duration(each.age_s)} ago")
    yield Text()
    yield table
    yield from _rest(len(facts.newest))


def _table(first: str, others: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rest(rows: int) -> Iterator[Text]:
    if rows > _ROWS:
        yield Text(f"and {rows - _ROWS:,} more; --json has all", style="dim")
