"""Grafana's panels as plain dicts: each says in a sentence what it shows, and its points lead to their steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.grafana.frames import Transformation
from verl_ingest.grafana.queries import Target
from verl_ingest.links import points

Panel = dict[str, Any]
Override = dict[str, Any]

VERSION = "11.6.0"  # older panels would be migrated from earlier forms
# Grafana's ids for the units of the catalogue.
UNITS = {
    "": "none",
    "nats": "suffix: nats",
    "s": "s",
    "ms": "ms",
    "GB": "decgbytes",
    "GiB": "gbytes",
    "%": "percent",
    "tokens/s": "suffix: tokens/s",
}
RED, GREEN = "red", "green"


def trend(
    title: str,
    description: str,
    query: tuple[Target | Sequence[Target], Sequence[Transformation]],
    *,
    unit: str = "",
    link: Sequence[str] = (points.STEP, points.METRIC_OF_FIELD),
    overrides: Sequence[Override] = (),
    limits: Mapping[str, float] | None = None,
) -> Panel:
    """Return a chart by step; `limits` are healthy bounds, low and high."""
    overrides = [*overrides, _HIDDEN_WHEN_EMPTY]
    lines = _lines(limits, span_gaps=True)
    panel = _panel("trend", title, description, query, unit=unit, link=link, overrides=overrides, defaults=lines)
    return panel | {"options": {"xField": "step", **_LEGEND}}


def timeline(
    title: str,
    description: str,
    targets: Sequence[Target],
    *,
    unit: str = "",
    link: Sequence[str] = (points.METRIC_OF_SERIES, points.TIME),
    overrides: Sequence[Override] = (),
    limits: Mapping[str, float] | None = None,
) -> Panel:
    """Return a chart by time; `limits` as in `trend`."""
    lines = _lines(limits, span_gaps=False)
    query = (targets, ())
    panel = _panel("timeseries", title, description, query, unit=unit, link=link, overrides=overrides, defaults=lines)
    return panel | {"options": _LEGEND}


def heat_map(
    title: str,
    description: str,
    query: tuple[Target, Sequence[Transformation]],
    *,
    unit: str = "",
    link: Sequence[str],
) -> Panel:
    """Return a heat map of steps and ranks, of a table with a column a rank."""
    panel = _panel("heatmap", title, description, query, unit=unit, link=link)
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "exponent": 0.5, "fill": "dark-orange"},
        "cellValues": {"unit": UNITS[unit]},
        "rowsFrame": {"layout": "unknown"},
        "yAxis": {"axisPlacement": "left"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "filterValues": {"le": -1e300},  # the default hides values around 0
        "showValue": "never",
    }
    return panel | {"options": options}


def table(
    title: str,
    description: str,
    query: tuple[Target, Sequence[Transformation]],
    *,
    link: Sequence[str],
    on: str = "step",
    sort: str | None = None,
    overrides: Sequence[Override] = (),
) -> Panel:
    """Return a table whose column `on` carries the link; `sort` is the column it rises by."""
    linked = override(on, {"links": [_link(link)]})
    panel = _panel("table", title, description, query, overrides=[linked, *overrides])
    sorted_by = [{"displayName": sort, "desc": False}] if sort else []
    return panel | {"options": {"showHeader": True, "cellHeight": "sm", "sortBy": sorted_by}}


def log_lines(title: str, description: str, target: Target, *, link: Sequence[str]) -> Panel:
    """Return a panel of log lines, the newest first; the link is in a line's details, on its step."""
    linked = override("step", {"links": [_link(link)]})
    panel = _panel("logs", title, description, (target, ()), overrides=[linked])
    options = {
        "showTime": True,
        "wrapLogMessage": True,
        "enableLogDetails": True,
        "sortOrder": "Descending",
        "dedupStrategy": "none",
        "prettifyLogMessage": False,
        "showLabels": False,
        "showCommonLabels": False,
    }
    return panel | {"options": options}


def override(which: Any, properties: Mapping[str, Any], *, matcher: str = "byName") -> Override:
    """Return what is different about the columns that `which` names, or describes to another matcher."""
    values = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": matcher, "options": which}, "properties": values}


def band(upper: str, lower: str) -> list[Override]:
    """Fill between two columns, which are neither in the legend nor in the tooltip."""
    quiet = {"custom.lineWidth": 0, "custom.showPoints": "never", "color": {"mode": "fixed", "fixedColor": "gray"}}
    hidden = {"custom.hideFrom": {"legend": True, "tooltip": True, "viz": False}}
    filled = {"custom.fillBelowTo": lower, "custom.fillOpacity": 15}
    return [override(upper, quiet | hidden | filled), override(lower, quiet | hidden)]


def right_axis(column: str, unit: str) -> Override:
    """Draw a column against the axis on the right."""
    return override(column, {"custom.axisPlacement": "right", "unit": UNITS[unit]})


def red_points(column: str) -> Override:
    """Draw a column as large red points."""
    return override(
        column,
        {
            "custom.drawStyle": "points",
            "custom.showPoints": "always",
            "custom.pointSize": 9,
            "color": {"mode": "fixed", "fixedColor": RED},
        },
    )


def _panel(
    kind: str,
    title: str,
    description: str,
    query: tuple[Target | Sequence[Target], Sequence[Transformation]],
    *,
    unit: str = "",
    link: Sequence[str] = (),
    overrides: Sequence[Override] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Panel:
    targets = [query[0]] if isinstance(query[0], dict) else list(query[0])
    links = {"links": [_link(link)]} if link else {}
    return {
        "type": kind,
        "title": title,
        "description": description,
        "pluginVersion": VERSION,
        "datasource": targets[0]["datasource"],
        "targets": targets,
        "transformations": list(query[1]),
        "fieldConfig": {"defaults": {"unit": UNITS[unit], **(defaults or {}), **links}, "overrides": list(overrides)},
    }


def _link(parts: Sequence[str]) -> dict[str, Any]:
    return {"title": "Open the step", "url": points.drilldown(*parts), "targetBlank": False, "oneClick": True}


def _lines(limits: Mapping[str, float] | None, *, span_gaps: bool) -> dict[str, Any]:
    custom = {"lineWidth": 1, "showPoints": "auto", "pointSize": 4, "spanNulls": span_gaps, "fillOpacity": 0}
    if not limits:
        return {"custom": custom}
    return {"custom": custom | {"thresholdsStyle": {"mode": "line"}}, "thresholds": _thresholds(**limits)}


def _thresholds(low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """Return the bounds as colours, red outside; a threshold counts from its value upwards."""
    steps = [{"color": GREEN if low is None else RED, "value": None}]
    if low is not None:
        steps.append({"color": GREEN, "value": low})
    if high is not None:
        steps.append({"color": RED, "value": high})
    return {"mode": "absolute", "steps": steps}


_LEGEND = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "none"},
}
# Columns without a number: what this run does not log.
_HIDDEN_WHEN_EMPTY = override(
    {"reducer": "allIsNull", "op": "eq", "value": 1},
    {"custom.hideFrom": {"legend": True, "tooltip": True, "viz": True}},
    matcher="byValue",
)
