"""What stands beside a step on its page: the charted metrics' levels around it, and where to go next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts, baseline, onset, pooling, runs, step
from verl_ingest.context.findings import Finding
from verl_ingest.context.pooling import Value
from verl_ingest.context.runs import Run
from verl_ingest.context.setup import Setup
from verl_ingest.context.step import Evidence
from verl_ingest.query.store import Key, Level, Levels, RunReader, Segment

MOST_NAMED = 5  # charted beside the golden six
LOOK = 25  # steps looked through at a time for the next one that is not normal
FARTHEST = 200


@dataclass(frozen=True)
class Around:
    """The levels of the charted metrics in the steps `first` to `last`, the golden six first.

    `nonfinite` are the steps in which a metric was not finite on some rank, `previous` and `next` the neighbours that
    the run has, `run` its state now.
    """

    first: int
    last: int
    levels: Mapping[Key, Levels]
    nonfinite: Mapping[str, Sequence[int]]
    previous: int | None
    next: int | None
    run: Run


def gather(
    run: RunReader,
    evidence: Evidence,
    findings: Sequence[Finding],
    *,
    catalogue: Catalogue,
    now: int,
    window: int = baseline.WINDOW,
) -> Around:
    """Read what the page shows beside what the step's context holds already."""
    at, known = evidence.step, evidence.known
    before = attempts.segments(known, evidence.attempt, max(at - window, 0), at - 1)
    after = attempts.segments(known, len(known), at + 1, at + window)
    here = attempts.segments(known, evidence.attempt, at, at) or [Segment(at, at)]
    previous = next(iter(run.steps(high=at - 1, size=1, newest_first=True)), None)
    keys = _charted(evidence, findings, catalogue)
    if not keys and previous is not None:  # a step that never came to its end: what the run logs otherwise
        keys = _golden(_spread(pooling.last_values(run.records(previous))), catalogue)
    later = run.history(after, [], keys).levels
    lost = [key for key in keys if key not in evidence.values]
    earlier = {**evidence.levels, **run.history(before, [], lost).levels}
    levels = {key: {**earlier.get(key, {}), **_own(evidence, key), **later.get(key, {})} for key in keys}
    steps = {at, *(step for of_key in levels.values() for step in of_key)}
    return Around(
        first=min(steps),
        last=max(steps),
        levels=levels,
        nonfinite=run.nonfinite_steps([*before, *here, *after]),
        previous=previous,
        next=next(iter(run.steps(low=at + 1, size=1, newest_first=False)), None),
        run=runs.as_it_is(run, Setup(total_steps=evidence.total_steps), now=now),
    )


def _charted(evidence: Evidence, findings: Sequence[Finding], catalogue: Catalogue) -> list[Key]:
    """Return the golden six as this run spells them, then the metrics that the findings name."""
    candidates = _lost(evidence) | _spread(evidence.values)
    golden = _golden(candidates, catalogue)
    named = (_widest(candidates, [name]) for finding in findings for name in finding.metrics)
    others = [key for key in dict.fromkeys(named) if key is not None and key not in golden]
    return [*golden, *others[:MOST_NAMED]]


def _golden(candidates: Mapping[Key, int], catalogue: Catalogue) -> list[Key]:
    return [key for metric in catalogue.golden if (key := _widest(candidates, metric.names)) is not None]


def _spread(values: Mapping[Key, Sequence[Value]]) -> dict[Key, int]:
    """Return how many ranks have a value of each metric."""
    return {key: len(of_key) for key, of_key in values.items()}


def find_anomaly(run: RunReader, at: int, *, forward: bool, catalogue: Catalogue, now: int, window: int) -> int | None:
    """Return the nearest step after (or before) `at` that is not normal, None where the next 200 are."""
    looked = 0
    while looked < FARTHEST:
        bounds = {"low": at + 1} if forward else {"high": at - 1}
        steps = run.steps(**bounds, size=LOOK, newest_first=not forward)
        if not steps:
            return None
        suspects = onset.suspects(run, sorted(steps), catalogue=catalogue, window=window)
        for suspect in suspects if forward else reversed(suspects):
            if step.assemble(run, suspect, catalogue=catalogue, now=now, window=window).findings:
                return suspect
        at = steps[-1]
        looked += len(steps)
    return None


def _widest(candidates: Mapping[Key, int], names: Sequence[str]) -> Key | None:
    """Return the spelling that the most ranks have, of equal ones the one named first."""
    here = [key for key in candidates if key.name in names]
    return min(here, key=lambda key: (-candidates[key], names.index(key.name)), default=None)


def _lost(evidence: Evidence) -> dict[Key, int]:
    """Return the metrics of which no rank had a finite value, on no rank each."""
    found = (
        Key(name, document.get("stage"), "rank" in document)
        for document in evidence.newest
        for name in document.get("nonfinite", ())
    )
    return {key: 0 for key in found if key not in evidence.values}


def _own(evidence: Evidence, key: Key) -> Levels:
    """Return the step's own level of a metric."""
    if key not in evidence.values:
        return {}
    pooled = pooling.pool(evidence.values[key], "none")
    return {evidence.step: Level(pooled.mean, pooled.low, pooled.high)}
