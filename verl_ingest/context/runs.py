"""The list of runs: state, whether abnormal and pinned, newest step of all, time to go, golden six."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import glance
from verl_ingest.context.glance import Glance
from verl_ingest.context.setup import Setup, read
from verl_ingest.context.words import duration
from verl_ingest.query.store import Mark, Moment, RunReader, RunRow, Store
from verl_ingest.query.times import iso

SILENT_S = 60.0  # less silence than this means nothing, as long as a run's own pace is not known
LEAST_SILENT_S = 10.0
SILENT_STEPS = 3.0  # nor does less than so many steps' time
ENOUGH_STEPS = 10  # to know the pace
ENDED_S = 86_400.0
AHEAD_S = 60.0  # clocks may differ by as much


@dataclass(frozen=True)
class Run:
    """One run as it is now; `golden` has the means of the golden six in its newest step, by catalogue name.

    `pace` is how many seconds each of its last steps took. `pinned` and `glance` are None where that is not known.
    """

    row: RunRow
    setup: Setup
    pace: Sequence[float]
    golden: Mapping[str, float]
    now: int
    pinned: bool | None = None
    glance: Glance | None = None

    @property
    def step(self) -> int | None:
        """The newest step."""
        return self.row.newest_step.step if self.row.newest_step else None

    @property
    def last(self) -> int | None:
        """Time of the newest record, None where the only times there are lie in the future.

        When an agent read a line without a time counts only while it tells that the run lives: it may have read it
        long after it was written. Yet where other times lie in the future there is nothing better.
        """
        times = [] if self.note else [self.row.last]
        if self.row.read is not None:
            newest = self.row.read[1]
            if self.note or self.now - newest <= 1_000 * patience(self.row, self.pace):
                times.append(newest)
        return max(times, default=None)

    @property
    def age_s(self) -> float:
        """Age of the newest record, 0 where it is not known."""
        return 0.0 if self.last is None else max(self.now - self.last, 0) / 1_000

    @property
    def heard(self) -> str:
        """Say when the newest record was."""
        return "not known" if self.last is None else f"{duration(self.age_s)} ago"

    @property
    def note(self) -> str | None:
        """Say that the run's times lie in the future, as those of a console in another time zone do."""
        ahead_s = (self.row.last - self.now) / 1_000
        return f"times lie {duration(ahead_s)} in the future; set timezone" if ahead_s > AHEAD_S else None

    @property
    def state(self) -> str:
        """Return finished, running, crashed, stalled, ended or unknown.

        Finished: the last step is there. Running: not silent for longer than `patience`. Else crashed where an error
        came after the newest step; else stalled, and after a day ended, since logs don't tell whether that was meant.
        Unknown: no error, and its times lie in the future.
        """
        if self.setup.total_steps is not None and self.step is not None and self.step >= self.setup.total_steps:
            return "finished"
        if self.last is not None and self.age_s <= patience(self.row, self.pace):
            return "running"
        if self.row.newest_error is not None and _is_after(self.row.newest_error, self.row.newest_step):
            return "crashed"
        if self.last is None:
            return "unknown"
        return "stalled" if self.age_s < ENDED_S else "ended"

    @property
    def abnormal(self) -> bool | None:
        """Whether it has crashed, or its golden six are abnormal now; None where that is not known."""
        if self.state == "crashed":
            return True
        return None if self.glance is None else self.glance.is_abnormal

    @property
    def abnormal_since(self) -> int | None:
        """The first step of that, where it is known."""
        known = [self.glance.since if self.glance is not None else None]
        known += [self.row.newest_error.step] if self.state == "crashed" else []
        return min((step for step in known if step is not None), default=None)

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last step ends at the usual pace; None where that, or the last step, is not known."""
        if self.state != "running" or None in (self.setup.total_steps, self.step) or len(self.pace) < ENOUGH_STEPS:
            return None
        return max((self.setup.total_steps - self.step) * statistics.median(self.pace) - self.age_s, 0.0)

    def newest_record(self) -> dict[str, Any]:
        """Return age and time of the newest record and the note about it, as JSON has them."""
        return {
            "age_s": None if self.last is None else round(self.age_s),
            "last": iso(self.row.last if self.last is None else self.last),
            "note": self.note,
        }

    def entry(self) -> dict[str, Any]:
        """Return the run as `runs --json` has it; what is not known is null."""
        return {
            "run_id": self.row.run_id,
            "state": self.state,
            "abnormal": self.abnormal,
            "abnormal_since": self.abnormal_since,
            "pinned": self.pinned,
            "step": self.step,
            "total": self.setup.total_steps,
            "eta_s": None if self.eta_s is None else round(self.eta_s),
            **self.newest_record(),
            "first": iso(self.row.first),
            "records": self.row.records,
            "world_size": self.setup.world_size,
            "tracker": self.setup.tracker,
            "golden": self.golden,
        }


def newest(store: Store, *, catalogue: Catalogue, now: int, most: int) -> list[Run]:
    """Return the runs that logged last, newest first, at most `most` of them."""
    rows = sorted(store.runs(), key=lambda row: -max(row.last, row.read[1] if row.read else 0))[:most]
    return sorted(complete(store, rows, catalogue=catalogue, now=now), key=lambda run: (run.age_s, -run.row.last))


def complete(store: Store, rows: Sequence[RunRow], *, catalogue: Catalogue, now: int) -> list[Run]:
    """Return the runs of the rows with all that a list of runs says of them."""
    setups = store.setups([row.run_id for row in rows])
    marks = {row.run_id: row.newest_step for row in rows if row.newest_step is not None}
    newest = {run_id: mark.step for run_id, mark in marks.items()}
    paces = store.paces(newest)
    # Whoever logged the newest step did so within the last few steps' time; an earlier attempt did it before that.
    since = {row.run_id: round(1_000 * patience(row, paces.get(row.run_id, ()))) for row in rows}
    moments = [Moment(run_id, mark.step, mark.time - since[run_id]) for run_id, mark in marks.items()]
    spellings = [name for metric in catalogue.golden for name in metric.names]
    values = dict(zip(marks, store.values(moments, spellings), strict=True))
    glances, pinned = glance.take(store, newest, catalogue), store.pinned()
    return [
        Run(
            row=row,
            setup=read(setups[row.run_id]),
            pace=paces.get(row.run_id, ()),
            golden=_golden(values.get(row.run_id, {}), catalogue),
            now=now,
            pinned=None if pinned is None else row.run_id in pinned,
            glance=glances.get(row.run_id),
        )
        for row in rows
    ]


def as_it_is(run: RunReader, of: Setup, *, now: int) -> Run:
    """Return one run without its golden six; `of` is how it was set up."""
    row = run.row()
    pace = run.pace(row.newest_step.step) if row.newest_step is not None else []
    return Run(row, of, pace, {}, now)


def patience(row: RunRow, pace: Sequence[float]) -> float:
    """Return for how many seconds a healthy run may be silent: three times the 95th percentile of its steps' times."""
    if len(pace) >= ENOUGH_STEPS:
        return max(LEAST_SILENT_S, SILENT_STEPS * statistics.quantiles(pace, n=20)[-1])
    steps = row.newest_step.step if row.newest_step else 0
    spans = [(row.first, row.last), *([row.read] if row.read is not None else [])]
    return max(SILENT_S, SILENT_STEPS * max(last - first for first, last in spans) / 1_000 / max(steps, 1))


def _is_after(error: Mark, step: Mark | None) -> bool:
    """Tell whether an error came after the newest step: by time, or by its own step where a line has no time."""
    if step is None or (error.dated and step.dated):
        return step is None or error.time > step.time
    return error.step is not None and error.step > step.step


def _golden(values: dict[str, float], catalogue: Catalogue) -> dict[str, float]:
    """Return the best spelling's value of each of the golden six."""
    found = {}
    for metric in catalogue.golden:
        if (spelt := metric.spelling(values)) is not None:
            found[metric.name] = values[spelt]
    return found
