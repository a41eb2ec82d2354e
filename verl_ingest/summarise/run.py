"""Bring the step summaries of a run up to date: write those that are missing or not fresh, remove what has no step.

Records are read, some 20,000 at a time, and not aggregated by the server: an aggregation must be told the names of the
metrics, can't weigh a std, and does not know which rank is the worst. Only records of steps whose summary is not fresh
are read, so that a second pass costs a count, and one that was stopped goes on where it was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from elasticsearch import Elasticsearch

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts
from verl_ingest.context.attempts import Attempt
from verl_ingest.context.dates import settled
from verl_ingest.query import summaries
from verl_ingest.query.elastic import ElasticRun, ElasticStore
from verl_ingest.query.store import LAST_STEP, Document, MadeOf, Segment
from verl_ingest.summarise import writing
from verl_ingest.summarise.step import summarise

STEPS = 500  # looked at together
RECORDS = 20_000  # in memory, or those of one step
NEWEST = 100  # steps that each look of `keep_up` is at;
LOOKS_PER_WHOLE = 120  # at all steps every so often, for records that come very late


@dataclass
class Changes:
    """What a pass did: steps with a new summary, with one made again, how many summaries stayed and were removed."""

    new: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    kept: int = 0
    removed: int = 0


def keep_up(
    store: ElasticStore,
    client: Elasticsearch,
    run_id: str,
    *,
    catalogue: Catalogue,
    wait: Callable[[], object],
    rebuild: bool = False,
    progress: Callable[[int], object] = lambda steps: None,
) -> Iterator[Changes]:
    """Yield what each look at a run changed, without end; the first one is at all of its steps, then comes a `wait`.

    `rebuild` and `progress` are those of the first look (see `bring_up_to_date`).
    """
    with store.open(run_id) as run:
        changes = bring_up_to_date(run, client, catalogue=catalogue, rebuild=rebuild, progress=progress)
    yield changes
    for look in count(1):
        wait()
        with store.open(run_id) as run:
            changes = bring_up_to_date(run, client, catalogue=catalogue, newest_only=look % LOOKS_PER_WHOLE > 0)
        yield changes


def bring_up_to_date(
    run: ElasticRun,
    client: Elasticsearch,
    *,
    catalogue: Catalogue,
    newest_only: bool = False,
    rebuild: bool = False,
    progress: Callable[[int], object] = lambda steps: None,
) -> Changes:
    """Bring the summaries of a run up to date; `progress` is told the steps as they are done.

    `newest_only` leaves out the steps before the last ones of the newest attempt; with `rebuild` summaries that are
    fresh are made again too. Raises StoreError where the server refuses one.
    """
    changes, known = Changes(), _attempts(run)
    low = max(known[-1].last_step - NEWEST + 1, 0) if known and newest_only else 0
    while known and (steps := run.steps(low=low, size=STEPS, newest_first=False)):
        end = steps[-1] if len(steps) == STEPS else LAST_STEP
        stored = {(found.attempt, found.step): found for found in run.summaries([Segment(low, end)])}
        for attempt in known:
            for segment in _own(known, attempt, low, steps[-1]):
                made_of = run.made_of([segment])
                before = {step: stored.pop((attempt.number, step), None) for step in made_of}
                stale = [
                    step
                    for step, old in before.items()
                    if rebuild or old is None or not summaries.is_fresh(old, segment, made_of)
                ]
                _write(run, client, attempt.number, segment, made_of, stale, catalogue)
                changes.new += [step for step in stale if before[step] is None]
                changes.again += [step for step in stale if before[step] is not None]
                changes.kept += len(made_of) - len(stale)
        writing.remove(client, stored.values())
        changes.removed += len(stored)
        progress(len(steps))
        low = end + 1
    writing.refresh(client)
    return changes


def _write(
    run: ElasticRun,
    client: Elasticsearch,
    attempt: int,
    segment: Segment,
    made_of: Mapping[int, MadeOf],
    steps: Sequence[int],
    catalogue: Catalogue,
) -> None:
    """Make and store the summaries of some steps of a segment."""
    for batch in _batches(steps, made_of):
        documents: dict[int, list[Document]] = {step: [] for step in batch}
        for document in run.metric_records(summaries.others([segment], made_of, made_of.keys() - documents.keys())):
            documents[document["step"]].append(document)
        made = (
            summarise(documents[step], attempt=attempt, made_of=made_of[step], catalogue=catalogue) for step in batch
        )
        writing.write(client, made)


def _attempts(run: ElasticRun) -> list[Attempt]:
    """Return the attempts of the run as its newest steps tell them."""
    for step in run.steps(size=attempts.NEAR, newest_first=True):
        known = attempts.find(run, settled(run.records(step)))
        if known:
            return known
    return []


def _own(known: Sequence[Attempt], attempt: Attempt, low: int, high: int) -> list[Segment]:
    """Return where the steps stand that the attempt itself logged, as a reader of its history asks for them."""
    first = low if attempt.number == 1 else max(low, attempt.first_step)
    return attempts.segments(known, attempt.number, first, high)


def _batches(steps: Sequence[int], made_of: Mapping[int, MadeOf]) -> Iterator[list[int]]:
    """Yield the steps, as many at a time as may be in memory."""
    batch, records = [], 0
    for step in steps:
        if batch and records + made_of[step].records > RECORDS:
            yield batch
            batch, records = [], 0
        batch.append(step)
        records += made_of[step].records
    if batch:
        yield batch
