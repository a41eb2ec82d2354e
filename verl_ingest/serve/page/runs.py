"""The list of runs as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.runs import Run
from verl_ingest.context.words import DASH, duration, number
from verl_ingest.links import page

# How a state is coloured: as a verdict is.
TONES = {
    "running": "normal",
    "finished": "normal",
    "crashed": "critical",
    "stalled": "abnormal",
    "ended": "unknown",
}


@dataclass(frozen=True)
class Row:
    """One run; `golden` are the values of the golden six in its newest step."""

    run_id: str
    address: str
    state: str
    step: str
    step_address: str | None
    to_go: str
    age: str
    golden: tuple[str, ...]


def rows(runs: Sequence[Run], catalogue: Catalogue, *, base: str) -> tuple[Row, ...]:
    """Return one row a run."""
    return tuple(row(run, catalogue, base=base) for run in runs)


def row(run: Run, catalogue: Catalogue, *, base: str) -> Row:
    """Return what the list says of a run."""
    of = "" if run.setup.total_steps is None else f" of {run.setup.total_steps:,}"
    return Row(
        run_id=run.row.run_id,
        address=page.run(base, run.row.run_id),
        state=run.state,
        step=DASH if run.step is None else f"{run.step:,}{of}",
        step_address=None if run.step is None else page.step(base, run.row.run_id, run.step),
        to_go=DASH if run.eta_s is None else duration(run.eta_s),
        age=duration(run.age_s),
        golden=tuple(number(run.golden.get(metric.name)) for metric in catalogue.golden),
    )
