"""Steps of a run that may not be normal, by a few searches for a hundred of them, and the first one that is not."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue, Metric
from verl_ingest.context import attempts, baseline, metrics, pooling, stages, step
from verl_ingest.context.attempts import Attempt
from verl_ingest.context.dates import settled
from verl_ingest.context.findings import LONG_STEP
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import History, Key, Level, RunReader

CHUNK = 100
NEAR = 3.0  # sigma; no limit is lower


@dataclass(frozen=True)
class Signs:
    """What about a step may be abnormal.

    `bad` are the metrics (catalogue names) whose mean is, and how many sigma; `apart` those whose spread over the ranks
    is above the usual one, and how many sigma. `troubled`: a value is not finite, there is an error, or a warning of
    known trouble. `uneven`: the step took long or has fewer records than the one before.
    """

    bad: Mapping[str, float]
    apart: Mapping[str, float]
    troubled: bool
    uneven: bool


@dataclass(frozen=True)
class Track:
    """One metric over the steps that have it, in order; `meaning` is its entry of the catalogue."""

    key: Key
    meaning: Metric | None
    steps: Sequence[int]
    levels: Sequence[Level]

    @property
    def quantity(self) -> str:
        """The catalogue's name, as `metrics.Judged` has it."""
        return metrics.quantity(self.key.name, self.meaning)

    def at(self, step: int) -> Level:
        """Return the level of a step that is there."""
        return self.levels[bisect_left(self.steps, step)]

    def between(self, first: int, end: int) -> dict[int, Level]:
        """Return the levels from `first` to before `end`."""
        low, high = bisect_left(self.steps, first), bisect_left(self.steps, end)
        return dict(zip(self.steps[low:high], self.levels[low:high], strict=True))

    def may_be_bad(self, step: int, window: int) -> bool:
        """Tell whether the mean needs judging: it is not near the steps before, or may have crossed a limit slowly."""
        has_limit = self.meaning is not None and bool(self.meaning.alarms)
        before = [level.mean for level in self.between(step - window, step).values()]
        return has_limit or not _is_near(self.at(step).mean, before, NEAR)


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
    known = attempts.find(run, settled(run.records(steps[-1])))
    return list(scan(run, known, steps, keys(run, steps), catalogue=catalogue, window=window))


def keys(run: RunReader, steps: Sequence[int]) -> list[Key]:
    """Return the metrics of the last two steps: the last one alone may never have come to its end, and has few."""
    return sorted({key for at in steps[-2:] for key in pooling.last_values(settled(run.records(at)))}, key=str)


def scan(
    run: RunReader,
    known: Sequence[Attempt],
    steps: Sequence[int],
    keys: Sequence[Key],
    *,
    catalogue: Catalogue,
    window: int,
) -> dict[int, Signs]:
    """Return the signs of those of the steps, in order, that may be abnormal, by the metrics `keys`."""
    if not known:
        return {}
    first, number = known[0].first_step, len(known)
    before = attempts.segments(known, number, first, min(first + window, steps[0]) - 1)
    before += attempts.segments(known, number, max(steps[0] - window, first + window), steps[0] - 1)
    here = attempts.segments(known, number, steps[0], steps[-1])
    recent = attempts.segments(known, number, max(steps[0] - 1, first), steps[-1])
    history = run.history([*before, *here], recent, keys)
    troubled, uneven = set(run.troubled_steps(here)), _long_or_short(history)
    tracks = [
        Track(key, meaning, sorted(levels), [levels[at] for at in sorted(levels)])
        for key, levels in history.levels.items()
        if levels and metrics.is_judged(meaning := catalogue.find(key.name))
    ]
    found = {}
    for at in steps:
        here = [track for track in tracks if at in history.levels[track.key]]
        bad = bad_means(at, here, catalogue=catalogue, window=window, first=first)
        apart = _apart(at, here, window)
        if bad or apart or at in troubled or at in uneven:
            found[at] = Signs(bad, apart, at in troubled, at in uneven)
    return found


def bad_means(at: int, here: Sequence[Track], *, catalogue: Catalogue, window: int, first: int) -> dict[str, float]:
    """Return the metrics whose mean is abnormal; most are seen to be normal without being judged."""
    suspect = [track for track in here if track.may_be_bad(at, window)]
    values = {track.key: [Value(track.at(at).mean, None, None, None)] for track in suspect}
    before = {track.key: track.between(at - window, at) for track in suspect}
    at_first = {track.key: track.between(first, min(first + window, at - window)) for track in suspect}
    # Half as many as there are, so that the limit is a little lower than the one the step's context will apply.
    judged = metrics.judge(values, before, at_first, {}, catalogue, among=(len(here) + 1) // 2)
    return {metric.quantity: metric.distance for metric in judged if metric.is_bad}


def _apart(at: int, here: Sequence[Track], window: int) -> dict[str, float]:
    """Return how many sigma the spread over the ranks is above that of the steps before, where it is far above."""
    found: dict[str, float] = {}
    for track in here:
        if track.key.ranked:
            spreads = [level.high - level.low for level in track.between(at - window, at).values()]
            now = track.at(at).high - track.at(at).low
            if not _is_near(now, spreads, NEAR):
                usual = baseline.usual(spreads)
                z = usual.z(now) if usual is not None and usual.enough else 0.0
                if z > max(baseline.OUTLYING, found.get(track.quantity, 0.0)):
                    found[track.quantity] = z
    return found


def _is_near(value: float, history: Sequence[float], sigmas: float) -> bool:
    """Tell, in a hurry, that a value is within so many robust sigma: half of the history lies between its quartiles,
    so the MAD is no smaller than the nearer quartile's distance from the median."""
    ordered = sorted(history)
    half, quarter = len(ordered) // 2, len(ordered) // 4
    if quarter == 0:
        return False
    median = ordered[half]
    return abs(value - median) <= 1.48 * sigmas * min(median - ordered[quarter], ordered[-1 - quarter] - median)


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
