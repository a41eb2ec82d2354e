"""The runs as a table."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.runs import Run
from verl_ingest.context.words import DASH, duration, number

GAP = 1
STATES = {"running": "green", "stalled": "yellow", "crashed": "red", "finished": "dim", "ended": "dim", "unknown": ""}
HEADINGS = {
    "kl_ref": "KL",
    "reward_mean": "reward",
    "advantage_mean": "adv mean",
    "advantage_std": "adv std",
    "clip_fraction": "clipped",
}


def render(runs: Sequence[Run], catalogue: Catalogue, *, width: int) -> Group:
    """Return one row a run, with those of the golden six of its newest step that `width` columns have room for."""
    columns = [
        ("run", [run.row.run_id for run in runs]),
        ("state", [run.state for run in runs]),
        ("step", [_step(run) for run in runs]),
        ("to go", [DASH if run.eta_s is None else duration(run.eta_s) for run in runs]),
        ("last record", [_heard(run) for run in runs]),
    ]
    left_out: list[str] = []
    room = width - sum(map(_width, columns))
    for metric in catalogue.golden:
        heading = HEADINGS.get(metric.name, metric.name)
        column = heading, [number(run.golden.get(metric.name)) for run in runs]
        room -= _width(column)
        if room >= 0:
            columns.append(column)
        else:
            left_out.append(heading)
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for heading, _ in columns:
        name = heading == "run"
        justify = "left" if name or heading == "state" else "right"
        table.add_column(heading, justify=justify, no_wrap=not name, overflow="fold", min_width=12 if name else None)
    for name, state, *cells in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(Text(name), Text(state, style=STATES[state]), *cells)
    notes = [f"{run.row.run_id}: {run.note}" for run in runs if run.note]
    notes += [f"left out: {', '.join(left_out)} (--json has all)"] if left_out else []
    return Group(table, *(Text(note, style="dim") for note in notes))


def _width(column: tuple[str, Sequence[str]]) -> int:
    heading, cells = column
    return max(map(cell_len, (heading, *cells))) + GAP


def _heard(run: Run) -> str:
    """Say when the newest record was in one unit: there is little room."""
    return DASH if run.last is None else f"{' '.join(duration(run.age_s).split()[:2])} ago"


def _step(run: Run) -> str:
    step = DASH if run.step is None else str(run.step)
    return step if run.setup.total_steps is None else f"{step}/{run.setup.total_steps}"
