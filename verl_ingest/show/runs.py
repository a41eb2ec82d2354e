"""The runs as a table."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.runs import Run
from verl_ingest.context.words import DASH, duration, number

WIDE = 80
STATES = {"running": "green", "stalled": "yellow", "crashed": "red", "finished": "dim", "ended": "dim"}
HEADINGS = {
    "kl_ref": "KL",
    "reward_mean": "reward",
    "advantage_mean": "adv mean",
    "advantage_std": "adv std",
    "clip_fraction": "clipped",
}


def render(runs: Sequence[Run], catalogue: Catalogue, *, width: int) -> Table:
    """Return one row a run, with the golden six of its newest step where `width` columns have room for them."""
    golden = catalogue.golden if width >= WIDE else ()
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("run", overflow="fold", min_width=12)
    table.add_column("state", no_wrap=True)
    for heading in ("step", "to go", "last record"):
        table.add_column(heading, justify="right", no_wrap=True)
    for metric in golden:
        table.add_column(HEADINGS.get(metric.name, metric.name), justify="right", overflow="fold")
    for run in runs:
        table.add_row(
            Text(run.row.run_id),
            Text(run.state, style=STATES[run.state]),
            _step(run),
            DASH if run.eta_s is None else duration(run.eta_s),
            f"{' '.join(duration(run.age_s).split()[:2])} ago",
            *(number(run.golden.get(metric.name)) for metric in golden),
        )
    return table


def _step(run: Run) -> str:
    step = DASH if run.step is None else str(run.step)
    return step if run.setup.total_steps is None else f"{step}/{run.setup.total_steps}"
