"""Attempts of a run (one launch each), derived when reading.

A launch id says it where the source knows one. Else an attempt begins where a process starts at or below a step that
an earlier process of the same rank had reached, and where the step of one process, or of all without ids, falls. One
rank and stage is enough to see that; what the other ranks logged is then cut by time.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from verl_ingest.context.dates import is_dated
from verl_ingest.query.store import Document, Launch, RunReader, Segment, Stream
from verl_ingest.query.times import milliseconds

NEAR = 3


@dataclass(frozen=True)
class Attempt:
    """One launch: the steps it logged, and its time from `begin` to its last record, in ms since 1970."""

    number: int
    launch: str | None
    first_step: int
    last_step: int
    begin: int
    end: int


def find(run: RunReader, documents: Sequence[Document]) -> list[Attempt]:
    """Return the attempts of a run, oldest first; the documents of one step say which rank and stage to watch.

    A step that never came to its end has an error and little else: then those of a step before it do.
    """
    stream = watched(documents if any(map(_says_step, documents)) else _before(run, documents))
    launches = [part for launch in run.launches(stream) for part in _parts(run, stream, launch)]
    if any(launch.attempt is not None or launch.pid is not None for launch in launches):
        attempts = from_launches(launches)
    elif launches:
        attempts = from_track(run.track(stream))
    else:
        return []
    return _cut(run, attempts, dated=stream.dated)


def watched(documents: Sequence[Document]) -> Stream:
    """Choose the rank and stage to watch: its records name their process and their step, have a time, and are few."""
    streams = Counter(
        (
            Stream(document.get("rank"), document.get("stage"), is_dated(document)),
            "process.pid" in document,
            _says_step(document),
        )
        for document in documents
        if document["kind"] == "metric"
    )
    if not streams:
        return Stream(None, None, dated=False)

    def order(found: tuple[Stream, bool, bool]) -> tuple[bool, bool, bool, bool, int, int, str]:
        stream, has_pid, says_step = found
        unranked, rank = stream.rank is None, stream.rank or 0
        return not has_pid, not says_step, not stream.dated, unranked, rank, streams[found], stream.stage or ""

    return min(streams, key=order)[0]


def from_launches(launches: Sequence[Launch]) -> list[Attempt]:
    """Return the attempts of processes of one rank; `begin` is then that rank's first record."""
    known = [launch for launch in launches if launch.attempt is not None]
    if known:
        return _by_launch_id(known)
    groups: list[list[Launch]] = []
    for launch in sorted((launch for launch in launches if launch.pid is not None), key=lambda launch: launch.first):
        if not groups or any(
            launch.first > other.last and launch.first_step <= other.last_step for other in groups[-1]
        ):
            groups.append([])
        groups[-1].append(launch)
    return [_attempt(number, None, group) for number, group in enumerate(groups, 1)]


def from_track(track: Sequence[tuple[int, int]]) -> list[Attempt]:
    """Return the attempts of one rank and stage from its (time, step) pairs in order of time."""
    attempts: list[Attempt] = []
    for time, step in track:
        if not attempts or step < attempts[-1].last_step:
            attempts.append(Attempt(len(attempts) + 1, None, step, step, time, time))
        attempts[-1] = replace(attempts[-1], last_step=step, end=time)
    return attempts


def number_of(document: Document, attempts: Sequence[Attempt]) -> int:
    """Return the number of the attempt a document belongs to: by its launch id, else by its time."""
    if len(attempts) < 2:
        return 1
    launch = document.get("attempt")
    if launch is not None:
        for attempt in attempts:
            if attempt.launch == launch:
                return attempt.number
    time = milliseconds(document)
    return max((attempt.number for attempt in attempts if attempt.begin <= time), default=1)


def part(documents: Iterable[Document], attempts: Sequence[Attempt]) -> dict[int, list[Document]]:
    """Part documents by the number of their attempt."""
    found: dict[int, list[Document]] = {}
    for document in documents:
        found.setdefault(number_of(document, attempts), []).append(document)
    return found


def segments(attempts: Sequence[Attempt], number: int, first: int, last: int) -> list[Segment]:
    """Return where the steps first..last stand as the newest attempt up to `number` logged them, in order of step."""
    found: list[Segment] = []
    high = last
    for attempt in reversed(attempts[:number]):
        low = max(first, attempt.first_step if attempt.number > 1 else first)
        if low <= high:
            later = attempts[attempt.number].begin if attempt.number < len(attempts) else None
            found.append(Segment(low, high, since=attempt.begin if attempt.number > 1 else None, until=later))
            high = low - 1
    return found[::-1]


def _parts(run: RunReader, stream: Stream, launch: Launch) -> list[Launch]:
    """Part what one process id logged where its step falls: in a container every launch may have the same id.

    Not without times of their own: one process's lines in two files (a console, Ray's file) are estimated apart, so its
    step seems to fall all the time.
    """
    known = launch.attempt is not None or launch.pid is None
    if known or not stream.dated or not run.falls(stream, launch):
        return [launch]
    return [
        replace(launch, first_step=part.first_step, last_step=part.last_step, first=part.begin, last=part.end)
        for part in from_track(run.track(stream, launch))
    ]


def _says_step(document: Document) -> bool:
    return document["kind"] == "metric" and document.get("step_source") == "record"


def _before(run: RunReader, documents: Sequence[Document]) -> Sequence[Document]:
    """Return the documents of the nearest step before that have metrics with a step of their own."""
    if documents:
        for step in run.steps(high=documents[0]["step"] - 1, size=NEAR, newest_first=True):
            records = run.records(step)
            if any(map(_says_step, records)):
                return records
    return documents


def _by_launch_id(launches: Sequence[Launch]) -> list[Attempt]:
    groups: dict[str, list[Launch]] = {}
    for launch in sorted(launches, key=lambda launch: launch.first):
        groups.setdefault(launch.attempt, []).append(launch)
    return [_attempt(number, name, group) for number, (name, group) in enumerate(groups.items(), 1)]


def _attempt(number: int, name: str | None, launches: Sequence[Launch]) -> Attempt:
    return Attempt(
        number=number,
        launch=name,
        first_step=min(launch.first_step for launch in launches),
        last_step=max(launch.last_step for launch in launches),
        begin=min(launch.first for launch in launches),
        end=max(launch.last for launch in launches),
    )


def _cut(run: RunReader, attempts: Sequence[Attempt], *, dated: bool) -> list[Attempt]:
    """Move each begin from the watched rank's first record to that of the quickest rank and stage."""
    cut = list(attempts[:1])
    for before, attempt in pairwise(attempts):
        if attempt.first_step < before.last_step:
            first = run.first_after(before.end, attempt.begin, attempt.first_step, dated=dated)
            begin = attempt.begin if first is None else first
        else:  # the steps can't tell the two apart, so halve the silence between them
            begin = (before.end + attempt.begin) // 2
        cut.append(replace(attempt, begin=begin))
    return cut
