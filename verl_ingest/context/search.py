"""Find log lines of a run: what is wanted, and where a text is looked for."""

from collections.abc import Mapping
from dataclasses import replace

from verl_ingest.context import attempts, hosts, lines, processes
from verl_ingest.context.dates import settled
from verl_ingest.context.names import step_number
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import Document, Lines, RunReader
from verl_ingest.query.times import milliseconds


def wanted(
    run: RunReader,
    *,
    text: str | None = None,
    rank: int | None = None,
    level: str | None = None,
    steps: tuple[int, int] | None = None,
    around: int | None = None,
) -> Lines:
    """Say which lines are wanted; `around` is in milliseconds.

    `around` adds the time around the steps, so that lines without a step come too; without steps it means the end of
    the run. Raises InputError for an unknown level, NotFound for steps that are not there.
    """
    levels = None
    if level is not None:
        levels = lines.levels_from(level)
        if levels is None:
            raise InputError(f"'{level}' is not a level; the levels are debug, info, warning and error.")
    pids = frozenset() if rank is None else frozenset(process.pid for process in run.processes(rank=rank))
    everywhen = Lines(rank=rank, pids=pids, levels=levels, text=text)
    if around is None:
        return replace(everywhen, steps=steps)
    if steps is None:
        end = run.last_time() + 1
        return replace(everywhen, since=end - around, until=end)
    times = [time for step in {*steps} for time in _times(run, step)]
    return replace(everywhen, steps=steps, around=(min(times) - around, max(times) + 1 + around))


def search(run: RunReader, wanted: Lines, skew: Mapping[str, float]) -> list[Document]:
    """Return the lines that are wanted, in order of true time, with the rank of their process where they have none.

    The text may stand anywhere in a line or its stack; `skew` sets the hosts' clocks right.
    """
    sought = (wanted.text or "").lower()
    found = [
        document
        for document in run.lines(wanted)
        if sought in f"{lines.text(document)}\n{document.get('error.stack_trace', '')}".lower()
    ]
    found.sort(key=lambda document: hosts.true_seconds(document, skew))
    ranked = processes.with_ranks(run, found)
    return [document for document in ranked if wanted.rank is None or document.get("rank") == wanted.rank]


def parse_steps(text: str) -> tuple[int, int]:
    """Read `120..130` or `128`; raises InputError."""
    low, dots, high = text.partition("..")
    if low.isdecimal() and (high.isdecimal() if dots else not high):
        first, last = step_number(low), step_number(high or low)
        if first <= last:
            return first, last
    raise InputError(f"'{text}' is not a range of steps; write 120..130 or 128.")


def _times(run: RunReader, step: int) -> tuple[int, int]:
    """Return when the newest attempt logged a step, from its first record to its last."""
    documents = settled(run.records(step))
    if not documents:
        raise NotFound(f"Run '{run.run_id}' has no step {step}.")
    parts = attempts.part(documents, attempts.find(run, documents))
    newest = parts[max(parts)]
    return milliseconds(newest[0]), milliseconds(newest[-1])
