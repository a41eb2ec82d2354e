"""Curves as a plot of characters, with their last values below."""

from collections.abc import Sequence

import plotext
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.context.curves import Curve
from verl_ingest.context.words import counted, number

HEIGHT = 18


def render(title: str, curves: Sequence[Curve], *, width: int, more: int = 0) -> RenderableType:
    """Return the plot and a row a curve; `more` is how many curves are left out."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("", "steps", "first", "last", "least", "greatest"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for curve in curves:
        values = list(curve.points.values())
        ends = (values[0], values[-1], min(values), max(values))
        table.add_row(Text(_name(curve)), f"{min(curve.points)}-{max(curve.points)}", *map(number, ends))
    left_out = [Text(f"{counted(more, 'more rank')}: --csv or --json has them", style="dim")] if more else []
    return Group(Text(title, style="bold"), Text(_plot(curves, width)), table, *left_out)


def _plot(curves: Sequence[Curve], width: int) -> str:
    plotext.clear_figure()
    plotext.limit_size(False, False)  # by the terminal, which is not asked here: a pipe has none
    plotext.plot_size(width, HEIGHT)
    for curve in curves:
        plotext.plot(list(curve.points), list(curve.points.values()), label=_name(curve))
    steps = [at for curve in curves for at in curve.points]
    ticks = sorted({min(steps) + (max(steps) - min(steps)) * part // 4 for part in range(5)})
    plotext.xticks(ticks, list(map(str, ticks)))
    drawn = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in drawn.rstrip("\n").split("\n"))


def _name(curve: Curve) -> str:
    name = curve.metric if curve.rank is None else f"rank {curve.rank}"
    return f"{name} ({curve.unit})" if curve.unit and curve.rank is None else name
