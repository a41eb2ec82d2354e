"""Series for a terminal, a table or JSON: one metric or several, over some steps, as a whole or rank by rank."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts, series
from verl_ingest.context.dates import settled
from verl_ingest.context.series import Series
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import RunReader

MOST_VALUES = 8_192  # of ranks in one search
FARTHEST = 8  # ranks that a plot has room for


@dataclass(frozen=True)
class Curve:
    """Values over the steps: of a metric, or of one rank of it."""

    metric: str
    unit: str
    rank: int | None
    points: Mapping[int, float]


def read(
    run: RunReader, names: Sequence[str], *, steps: tuple[int, int] | None, by_rank: bool, catalogue: Catalogue
) -> list[Curve]:
    """Return the curves of some metrics, each step once, from the newest attempt that logged it.

    Raises NotFound for a metric that the run does not have, or not in these steps; InputError for ranks of a metric
    that only the driver logs.
    """
    found = []
    for name in names:
        whole = find(run, name, catalogue)
        levels = {at: level for at, level in sorted(whole.levels.items()) if _is_within(at, steps)}
        if not levels:
            raise NotFound(f"Run '{run.run_id}' has no {whole.key.name} in steps {steps[0]} to {steps[1]}.")
        if by_rank:
            found += _of_ranks(run, whole, list(levels))
        else:
            means = {at: level.mean for at, level in levels.items()}
            found.append(Curve(whole.key.name, whole.unit, None, means))
    return found


def find(run: RunReader, name: str, catalogue: Catalogue) -> Series:
    """Return the series of a metric, under another spelling where the run does not have this one; raises NotFound."""
    try:
        return series.read(run, name, catalogue=catalogue)
    except NotFound:
        quantity = catalogue.quantity(name)
        if quantity == name:
            raise
        return series.read(run, quantity, catalogue=catalogue)


def farthest(curves: Sequence[Curve]) -> list[Curve]:
    """Return the ranks whose values lie farthest from the other ranks', at most eight."""
    if len(curves) <= FARTHEST:
        return list(curves)
    middle = {}
    for at in {at for curve in curves for at in curve.points}:
        middle[at] = statistics.median(curve.points[at] for curve in curves if at in curve.points)

    def distance(curve: Curve) -> float:
        return max(abs(value - middle[at]) for at, value in curve.points.items())

    return sorted(sorted(curves, key=distance, reverse=True)[:FARTHEST], key=lambda curve: curve.rank)


def table(curves: Sequence[Curve]) -> list[list[Any]]:
    """Return rows of step and one column a curve, the headings first; None where a curve lacks a step."""
    headings = [curve.metric if curve.rank is None else f"{curve.metric} rank {curve.rank}" for curve in curves]
    steps = sorted({at for curve in curves for at in curve.points})
    return [["step", *headings], *([at, *(curve.points.get(at) for curve in curves)] for at in steps)]


def entry(run_id: str, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the curves as `series --json` has them; points are [step, value]."""
    return {
        "run_id": run_id,
        "series": [
            {
                "metric": curve.metric,
                "unit": curve.unit,
                "rank": curve.rank,
                "points": [[at, value] for at, value in curve.points.items()],
            }
            for curve in curves
        ],
    }


def _of_ranks(run: RunReader, whole: Series, steps: Sequence[int]) -> list[Curve]:
    if not whole.key.ranked:
        raise InputError(f"{whole.key.name} is logged by the driver alone, not by ranks; leave out --by rank.")
    known = attempts.find(run, settled(run.records(steps[-1])))
    points: dict[int, dict[int, float]] = {}
    low, size = 0, 1
    while low < len(steps):
        part = steps[low : low + size]
        segments = attempts.segments(known, len(known), part[0], part[-1])
        values = run.rank_values(segments, [whole.key])[whole.key]
        for at, of_ranks in sorted(values.items()):
            for rank, value in of_ranks.items():
                points.setdefault(rank, {})[at] = value
        low, size = low + size, max(MOST_VALUES // max(len(points), 1), 1)  # the first step tells how many ranks
    return [Curve(whole.key.name, whole.unit, rank, points[rank]) for rank in sorted(points)]


def _is_within(step: int, steps: tuple[int, int] | None) -> bool:
    return steps is None or steps[0] <= step <= steps[1]
