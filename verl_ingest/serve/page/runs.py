"""The list of runs as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.runs import Run
from verl_ingest.context.words import DASH, duration, number
from verl_ingest.links import page
from verl_ingest.serve.page.golden import TITLES
from verl_ingest.show.runs import HEADINGS, abnormal


@dataclass(frozen=True)
class Row:
    """One run; `golden` are the values of the golden six in its newest step, `abnormal_address` its first bad step."""

    run_id: str
    address: str
    pinned: bool
    state: str
    abnormal: str
    is_abnormal: bool
    abnormal_address: str | None
    step: str
    step_address: str | None
    to_go: str
    heard: str
    golden: tuple[str, ...]


def headings(catalogue: Catalogue) -> list[str]:
    """Return what the golden six are called where there is little room."""
    return [HEADINGS.get(metric.name, metric.name) for metric in catalogue.golden]


def golden(run: Run, catalogue: Catalogue) -> list[tuple[str, str]]:
    """Return those of the golden six that the newest step has, with their units."""
    return [
        (TITLES.get(metric.name, metric.name), number(run.golden[metric.name], metric.unit or ""))
        for metric in catalogue.golden
        if metric.name in run.golden
    ]


def rows(runs: Sequence[Run], catalogue: Catalogue, *, base: str) -> tuple[Row, ...]:
    """Return one row a run."""
    return tuple(_row(run, catalogue, base) for run in runs)


def _row(run: Run, catalogue: Catalogue, base: str) -> Row:
    of = "" if run.setup.total_steps is None else f" of {run.setup.total_steps:,}"
    return Row(
        run_id=run.row.run_id,
        address=page.run(base, run.row.run_id),
        pinned=bool(run.pinned),
        state=run.state,
        abnormal=abnormal(run),
        is_abnormal=bool(run.abnormal),
        abnormal_address=None if run.abnormal_since is None else page.step(base, run.row.run_id, run.abnormal_since),
        step=DASH if run.step is None else f"{run.step:,}{of}",
        step_address=None if run.step is None else page.step(base, run.row.run_id, run.step),
        to_go=DASH if run.eta_s is None else duration(run.eta_s),
        heard=run.note or run.heard,
        golden=tuple(number(run.golden.get(metric.name)) for metric in catalogue.golden),
    )
