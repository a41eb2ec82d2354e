"""A metric of several runs over each other, as the shapes of an SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import series
from verl_ingest.context.series import Series
from verl_ingest.context.words import number
from verl_ingest.links import page

WIDTH, HEIGHT = 960, 320
LEFT, BOTTOM, TOP = 60, 24, 8  # room for the labels of the axes
TICKS = 4


@dataclass(frozen=True)
class Curve:
    """One run: its smoothed line and the one of its own values, its last value, the address of its last step."""

    run_id: str
    address: str
    metric: str
    line: str
    own: str
    last: str
    steps: str


@dataclass(frozen=True)
class Overlay:
    """The chart; ticks are (place, words)."""

    curves: tuple[Curve, ...]
    unit: str
    across: tuple[tuple[float, str], ...]
    up: tuple[tuple[float, str], ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    floor: int = HEIGHT - BOTTOM


def draw(found: Sequence[Series], *, smooth: float, base: str) -> Overlay | None:
    """Lay the runs over each other by step; None where none of them has a value."""
    steps = [step for each in found for step in each.levels]
    if not steps:
        return None
    values = [level.mean for each in found for level in each.levels.values()]
    across, up = _Axis(min(steps), max(steps), LEFT, WIDTH - 8), _Axis(min(values), max(values), HEIGHT - BOTTOM, TOP)
    curves = []
    for each in found:
        points = sorted((step, level.mean) for step, level in each.levels.items())
        smoothed = series.smoothed([value for _, value in points], smooth)
        last = points[-1][0] if points else 0
        curves.append(
            Curve(
                run_id=each.run_id,
                address=page.step(base, each.run_id, last),
                metric=each.key.name,
                line=_path([(across.at(step), up.at(y)) for (step, _), y in zip(points, smoothed, strict=True)]),
                own=_path([(across.at(step), up.at(value)) for step, value in points]) if smooth else "",
                last=number(points[-1][1], each.unit) if points else "no value",
                steps=f"steps {points[0][0]} to {last}" if points else "",
            )
        )
    return Overlay(
        curves=tuple(curves),
        unit=found[0].unit,
        across=tuple((across.at(step), f"{step:,.0f}") for step in across.ticks()),
        up=tuple((up.at(value), number(value)) for value in up.ticks()),
    )


def choices(catalogue: Catalogue) -> list[str]:
    """Return the names of metrics that can be chosen without knowing how a run spells them."""
    return sorted(metric.name for metric in catalogue.metrics if metric.names)


@dataclass(frozen=True)
class _Axis:
    """Maps low..high to begin..end of the drawing."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.begin + share * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        if self.high == self.low:
            return [self.low]
        return [self.low + part * (self.high - self.low) / TICKS for part in range(TICKS + 1)]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if place else 'M'}{x} {y}" for place, (x, y) in enumerate(points))
