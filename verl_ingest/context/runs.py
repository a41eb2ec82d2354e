"""The list of runs: state, newest step, age, golden six."""

from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.query.store import Moment, RunRow, Store
from verl_ingest.query.times import iso

SILENT_S = 60.0  # less silence than this means nothing
SILENT_STEPS = 3.0  # nor does less than so many steps' time
ENDED_S = 86_400.0


@dataclass(frozen=True)
class Run:
    """One run as it is now; `golden` has the means of the golden six in its newest step, by catalogue name."""

    row: RunRow
    state: str
    age_s: float
    golden: dict[str, float]

    def entry(self) -> dict[str, Any]:
        """Return the run as `runs --json` has it; `total` is unknown."""
        return {
            "run_id": self.row.run_id,
            "state": self.state,
            "step": self.row.last_step,
            "total": None,
            "age_s": round(self.age_s),
            "first": iso(self.row.first),
            "last": iso(self.row.last),
            "records": self.row.records,
            "golden": self.golden,
        }


def newest(store: Store, *, catalogue: Catalogue, now: int, most: int) -> list[Run]:
    """Return the runs that logged last, newest first, at most `most` of them."""
    rows = sorted(store.runs(), key=lambda row: -row.last)[:most]
    with_steps = [row for row in rows if row.last_step is not None]
    # Whoever logged the newest step did so within the last few steps' time; an earlier attempt did it before that.
    moments = [Moment(row.run_id, row.last_step, row.last - round(1_000 * _patience(row))) for row in with_steps]
    spellings = [name for metric in catalogue.golden for name in metric.names]
    values = dict(zip((row.run_id for row in with_steps), store.values(moments, spellings), strict=True))
    return [
        Run(row, state(row, now), (now - row.last) / 1_000, _golden(values.get(row.run_id, {}), catalogue))
        for row in rows
    ]


def state(row: RunRow, now: int) -> str:
    """Return running, crashed, stalled or ended.

    Silent for more than a minute and three steps' time, a run has crashed if its last words were an error; else it is
    stalled, and after a day ended, since logs alone don't tell whether that was meant.
    """
    silence, patience = (now - row.last) / 1_000, _patience(row)
    if silence <= patience:
        return "running"
    if row.last_error is not None and (row.last - row.last_error) / 1_000 <= patience:
        return "crashed"
    return "stalled" if silence < ENDED_S else "ended"


def _patience(row: RunRow) -> float:
    return max(SILENT_S, SILENT_STEPS * (row.last - row.first) / 1_000 / max(row.last_step or 0, 1))


def _golden(values: dict[str, float], catalogue: Catalogue) -> dict[str, float]:
    """Return the best spelling's value of each of the golden six."""
    found = {}
    for metric in catalogue.golden:
        spelt = next((name for name in metric.names if name in values), None)
        if spelt is not None:
            found[metric.name] = values[spelt]
    return found
