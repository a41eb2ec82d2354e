"""Heat map of metrics x ranks: how far each rank is from the others, in robust sigma.

Cells within three sigma are not drawn, so that 512 ranks stay light; of many ranks the farthest of each host counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import baseline
from verl_ingest.context.metrics import is_judged
from verl_ingest.context.words import number, sigmas
from verl_ingest.serve.page.ranks import Place

METRICS = 20
MOST_COLUMNS = 64
LIMITS = (3.0, 6.0, 12.0)  # sigma at which a cell becomes visible, clear, strong
LEAST_RANKS = 3


@dataclass(frozen=True)
class Spot:
    """One cell: its column, `above` or `below` the others, strength 1 to 3, and the words."""

    column: int
    side: str
    strength: int
    words: str


@dataclass(frozen=True)
class Line:
    """One metric, with the cells that stand out."""

    name: str
    spots: tuple[Spot, ...]


@dataclass(frozen=True)
class HeatMap:
    """The metrics that deviate most; a column is a rank, or a host where `folded`."""

    columns: tuple[str, ...]
    folded: bool
    lines: tuple[Line, ...]
    left_out: int


def draw(metrics: Sequence[Mapping[str, Any]], where: Mapping[int, Place], catalogue: Catalogue) -> HeatMap | None:
    """Return the heat map of metrics as `step --json` has them; None where no metric has three ranks."""
    candidates = [
        (entry, {int(rank): value for rank, value in entry["values"].items()})
        for entry in metrics
        if len(entry["values"]) >= LEAST_RANKS and is_judged(catalogue.find(entry["name"]))
    ]
    ranks = sorted({rank for _, values in candidates for rank in values})
    if not ranks:
        return None
    folded = len(ranks) > MOST_COLUMNS
    column_of = {rank: (where.get(rank, Place()).host or "host unknown") if folded else str(rank) for rank in ranks}
    columns = tuple(dict.fromkeys(column_of.values()))
    far = [(entry, values, _sigmas(values)) for entry, values in candidates]
    far.sort(key=lambda item: -max(map(abs, item[2].values())))
    lines = [_line(entry, values, z, column_of, columns) for entry, values, z in far]
    deviating = [line for line in lines if line.spots]
    return HeatMap(columns, folded, tuple(deviating[:METRICS]), max(len(deviating) - METRICS, 0))


def _sigmas(values: Mapping[int, float]) -> dict[int, float]:
    everyone = baseline.usual(list(values.values()))
    return {rank: everyone.z(value) for rank, value in values.items()}


def _line(
    entry: Mapping[str, Any],
    values: Mapping[int, float],
    z: Mapping[int, float],
    column_of: Mapping[int, str],
    columns: Sequence[str],
) -> Line:
    farthest: dict[str, int] = {}
    for rank in values:
        column = column_of[rank]
        if abs(z[rank]) >= LIMITS[0] and abs(z[rank]) > abs(z.get(farthest.get(column, -1), 0.0)):
            farthest[column] = rank
    spots = [
        Spot(
            column=columns.index(column),
            side="above" if z[rank] > 0 else "below",
            strength=sum(abs(z[rank]) >= limit for limit in LIMITS),
            words=f"{entry['name']}, rank {rank}: {number(values[rank], entry['unit'] or '')}, "
            f"{sigmas(z[rank])} {'above' if z[rank] > 0 else 'below'} the other ranks",
        )
        for column, rank in farthest.items()
    ]
    return Line(entry["name"], tuple(spots))
