"""docs/dashboards.md, from the dashboards themselves."""

from collections.abc import Sequence

from verl_ingest import assets
from verl_ingest.catalog.reference import table
from verl_ingest.grafana import frames, sources
from verl_ingest.grafana.board import Dashboard
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.queries import Target

PATH = "docs/dashboards.md"
KINDS = {
    "trend": "chart by step",
    "timeseries": "chart by time",
    "heatmap": "heat map by step",
    "table": "table",
    "logs": "log lines",
}


def files(dashboards: Sequence[Dashboard], service_url: str) -> dict[str, str]:
    """Return the page: path relative to the repository -> text."""
    found = sources.data_sources("elasticsearch", "prometheus", service_url, {})
    rows = [(s["name"], f"`{s['uid']}`", s["type"], s["jsonData"].get("index", "")) for s in found]
    text = assets.template("dashboards.md.j2").render(
        service=service_url,
        sources=table(("Name", "uid", "Type", "Index"), rows),
        window=frames.WINDOW,
        dashboards=[_section(dashboard) for dashboard in dashboards],
    )
    return {PATH: text}


def _section(dashboard: Dashboard) -> dict[str, str]:
    body = dashboard.body
    panels = [inner for panel in body["panels"] for inner in (panel["panels"] if panel["type"] == "row" else [panel])]
    shown = [variable["label"] for variable in body["templating"]["list"] if "hide" not in variable]
    return {
        "title": f"{dashboard.title} (`{dashboard.uid}`)",
        "about": body["description"],
        "variables": ", ".join(shown),
        "table": table(("Panel", "Kind", "Shows", "Asks for"), map(_row, panels)),
    }


def _row(panel: Panel) -> tuple[str, str, str, str]:
    asked = "; ".join(dict.fromkeys(map(_asked, panel["targets"])))
    return panel["title"], KINDS[panel["type"]], panel["description"], asked


def _asked(target: Target) -> str:
    """Say in words what a query asks for."""
    if "expr" in target:
        return f"`{target['expr']}`"
    fields = list(dict.fromkeys(metric["field"] for metric in target["metrics"] if "field" in metric))
    kinds = " and ".join(dict.fromkeys(metric["type"] for metric in target["metrics"]))
    if not target["bucketAggs"]:
        return f"records: `{target['query']}`"
    of = f" of {', '.join(f'`{field}`' for field in fields)}" if fields else ""
    return f"{kinds}{of} by {', '.join(bucket['field'] for bucket in target['bucketAggs'])}"
