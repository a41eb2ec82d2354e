"""Small line charts as the shapes of an SVG: pure numbers, drawn by the template."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT, PAD = 200, 32, 3


@dataclass(frozen=True)
class Sparkline:
    """A line over steps: `path` of the line, `band` (top, height) of what is usual, the step's mark, NaN marks at x."""

    path: str
    band: tuple[float, float] | None
    at: float
    dot: float | None
    nan: tuple[float, ...]
    words: str
    width: int = WIDTH
    height: int = HEIGHT


def draw(
    points: Sequence[tuple[int, float]],
    *,
    first: int,
    last: int,
    at: int,
    usual: tuple[float, float] | None,
    nan: Iterable[int],
) -> Sparkline:
    """Draw (step, value) points in order of step; a gap in the steps is a gap in the line."""
    values = [value for _, value in points] + list(usual or ())
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0

    def x(step: int) -> float:
        return round(PAD + (WIDTH - 2 * PAD) * (step - first) / max(last - first, 1), 1)

    def y(value: float) -> float:
        return round(HEIGHT - PAD - (HEIGHT - 2 * PAD) * (value - low) / span, 1)

    own = dict(points).get(at)
    return Sparkline(
        path=_path([(step, x(step), y(value)) for step, value in points]),
        band=(y(usual[1]), round(y(usual[0]) - y(usual[1]), 1)) if usual else None,
        at=x(at),
        dot=None if own is None else y(own),
        nan=tuple(x(step) for step in nan if first <= step <= last),
        words=f"steps {first} to {last}" if points else "no values",
    )


def _path(points: Sequence[tuple[int, float, float]]) -> str:
    if not points:
        return ""
    usual_gap = min((after - before for (before, *_), (after, *_) in pairwise(points)), default=1)
    parts = [f"M{points[0][1]} {points[0][2]}"]
    for (before, *_), (step, x, y) in pairwise(points):
        parts.append(f"{'L' if step - before <= usual_gap else 'M'}{x} {y}")
    return "".join(parts)
