"""The first step of a run that is not normal."""

from collections.abc import Iterable, Mapping, Sequence

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts, baseline, metrics, pooling, stages, step
from verl_ingest.context.dates import settled
from verl_ingest.context.findings import LONG_STEP
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import History, Key, Level, RunReader

CHUNK = 100


def first_bad(run: RunReader, *, catalogue: Catalogue, now: int, window: int) -> int | None:
    """Return the first step whose context has a finding, None where all are normal.

    Looks through the levels of a hundred steps at a time for steps that may be abnormal, and assembles only those.
    """
    low = 0
    while steps := run.steps(low=low, size=CHUNK, newest_first=False):
        for suspect in suspects(run, steps, catalogue=catalogue, window=window):
            if step.assemble(run, suspect, catalogue=catalogue, now=now, window=window).findings:
                return suspect
        low = steps[-1] + 1
    return None


def suspects(run: RunReader, steps: Sequence[int], *, catalogue: Catalogue, window: int) -> list[int]:
    """Return those of the steps, in order, that may be abnormal."""
    documents = settled(run.records(steps[-1]))
    known = attempts.find(run, documents)
    if not known:
        return []
    first = known[0].first_step
    number = len(known)
    before = attempts.segments(known, number, first, min(first + window, steps[0]) - 1)
    before += attempts.segments(known, number, max(steps[0] - window, first + window), steps[0] - 1)
    here = attempts.segments(known, number, steps[0], steps[-1])
    keys = list(pooling.last_values(documents))
    history = run.history([*before, *here], attempts.segments(known, number, max(steps[0] - 1, first), steps[-1]), keys)
    troubled = {*run.troubled_steps(here), *_long_or_short(history)}
    return [
        at
        for at in steps
        if at in troubled or _stands_out(at, history.levels, catalogue=catalogue, window=window, first=first)
    ]


def _stands_out(
    at: int, levels: Mapping[Key, Mapping[int, Level]], *, catalogue: Catalogue, window: int, first: int
) -> bool:
    """Tell whether a metric's mean is abnormal, or the distance of its farthest rank from the mean."""
    values = {key: [Value(of[at].mean, None, None, None)] for key, of in levels.items() if at in of}
    before = {key: _between(of, at - window, at) for key, of in levels.items()}
    at_first = {key: _between(of, first, min(first + window, at - window)) for key, of in levels.items()}
    judged = metrics.judge(values, before, at_first, {}, catalogue)
    return any(
        metric.is_bad or _ranks_part(before[metric.key].values(), levels[metric.key][at])
        for metric in judged
        if metrics.is_judged(metric.meaning)
    )


def _ranks_part(before: Iterable[Level], now: Level) -> bool:
    spreads = [level.high - level.low for level in before]
    usual = baseline.usual(spreads)
    return usual is not None and usual.enough and usual.z(now.high - now.low) > baseline.OUTLYING


def _between(levels: Mapping[int, Level], first: int, end: int) -> dict[int, Level]:
    return {step: level for step, level in levels.items() if first <= step < end}


def _long_or_short(history: History) -> set[int]:
    """Return the steps that took long, or that have fewer records of a stage than the step before."""
    found = {
        step
        for stage in history.presence.values()
        for step, records in stage.records.items()
        if records < stage.records.get(step - 1, 0)
    }
    took = stages.step_times(history.presence)
    usual = baseline.usual(list(took.values()))
    return found | {step for step, seconds in took.items() if seconds > LONG_STEP * usual.median}
