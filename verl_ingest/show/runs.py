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
WIDE = 80
UNKNOWN = (
    f"{DASH}: without step summaries the list can't say whether a run is abnormal; `verl-ingest summarize RUN` makes "
    "them, and `verl-ingest why RUN` needs none."
)
STATES = {"running": "green", "stalled": "yellow", "crashed": "red", "finished": "dim", "ended": "dim", "unknown": ""}
HEADINGS = {
    "kl_ref": "KL",
    "reward_mean": "reward",
    "advantage_mean": "adv mean",
    "advantage_std": "adv std",
    "clip_fraction": "clipped",
}


def render(runs: Sequence[Run], catalogue: Catalogue, *, width: int) -> Group:
    """Return one row a run, with those of the golden six of its newest step that `width` columns have room for.

    What is not known of any run, or so of none, has no column.
    """
    judged = any(run.abnormal is not None for run in runs)
    columns = [
        ("run", [run.row.run_id for run in runs]),
        ("state", [run.state for run in runs]),
        *([("abnormal", [abnormal(run) for run in runs])] if judged else []),
        *([("pinned", ["yes" if run.pinned else "" for run in runs])] if any(run.pinned for run in runs) else []),
        ("step", [_step(run) for run in runs]),
        *([("to go", list(map(_to_go, runs)))] if width >= WIDE or not judged else []),
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
        justify = "left" if heading in ("run", "state", "abnormal", "pinned") else "right"
        table.add_column(heading, justify=justify, no_wrap=not name, overflow="fold", min_width=12 if name else None)
    for run, (name, state, *cells) in zip(runs, zip(*(cells for _, cells in columns), strict=True), strict=True):
        if judged:
            cells[0] = Text(cells[0], style="red" if run.abnormal else "")
        table.add_row(Text(name), Text(state, style=STATES[state]), *cells)
    notes = [f"{run.row.run_id}: {run.note}" for run in runs if run.note]
    notes += [f"left out: {', '.join(left_out)} (--json has all)"] if left_out else []
    return Group(table, *(Text(note, style="dim") for note in notes))


def abnormal(run: Run) -> str:
    """Say since which step a run is abnormal, or that it is not, or that nobody knows."""
    if run.abnormal_since is not None:
        return f"since {run.abnormal_since}"
    return DASH if run.abnormal is None else "yes" if run.abnormal else "no"


def _width(column: tuple[str, Sequence[str]]) -> int:
    heading, cells = column
    return max(map(cell_len, (heading, *cells))) + GAP


def _heard(run: Run) -> str:
    """Say when the newest record was in one unit: there is little room."""
    return DASH if run.last is None else f"{' '.join(duration(run.age_s).split()[:2])} ago"


def _to_go(run: Run) -> str:
    return DASH if run.eta_s is None else duration(run.eta_s)


def _step(run: Run) -> str:
    step = DASH if run.step is None else str(run.step)
    return step if run.setup.total_steps is None else f"{step}/{run.setup.total_steps}"
