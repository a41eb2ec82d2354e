"""Put panels, variables and annotations together to a dashboard."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.grafana import queries
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.variables import Variable

COLUMNS = 24  # of Grafana's grid
TAG = "verl"
SCHEMA = 39  # Grafana 11.6 and later read it, and migrate it to their own


@dataclass(frozen=True)
class Row:
    """Panels beside each other, of equal width; with a title they begin a section, which may be folded."""

    panels: Sequence[Panel]
    height: int = 8
    title: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Dashboard:
    """One dashboard: `body` is what Grafana imports."""

    uid: str
    title: str
    body: dict[str, Any]

    @property
    def path(self) -> str:
        """Where it lies in the repository."""
        return f"deploy/grafana/dashboards/{self.uid}.json"


def dashboard(
    uid: str, title: str, description: str, variables: Sequence[Variable], rows: Sequence[Row], *, by_run: bool = True
) -> Dashboard:
    """Return a dashboard; one `by_run` shows what the run's anomalies and launches were when."""
    annotations = [_anomalies(), _launches()] if by_run else []
    body = {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG],
        "editable": False,
        "graphTooltip": 1,  # the crosshair is shared
        "schemaVersion": SCHEMA,
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "refresh": "1m",
        "templating": {"list": list(variables)},
        "annotations": {"list": annotations},
        "links": [_others()],
        "panels": _placed(rows),
    }
    return Dashboard(uid, title, body)


def _placed(rows: Sequence[Row]) -> list[Panel]:
    """Give each panel its id and its place, from the top down."""
    placed: list[Panel] = []
    top = number = 0
    for row in rows:
        header = None
        if row.title:
            number += 1
            header = {"type": "row", "title": row.title, "id": number, "collapsed": row.folded, "panels": []}
            header["gridPos"] = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
            placed.append(header)
            top += 1
        width = COLUMNS // len(row.panels)
        for index, panel in enumerate(row.panels):
            number += 1
            place = {"x": index * width, "y": top, "w": width, "h": row.height}
            (header["panels"] if row.folded else placed).append({**panel, "id": number, "gridPos": place})
        top += row.height
    return placed


def _anomalies() -> dict[str, Any]:
    return {
        "name": "Anomalies",
        "enable": True,
        "iconColor": "red",
        "datasource": queries.BY_TIME,
        "query": f"{queries.RUN} AND kind:anomaly",
        "timeField": "@timestamp",
        "textField": "anomaly.message",
        "tagsField": "anomaly.rule",
    }


def _launches() -> dict[str, Any]:
    return {
        "name": "Launches",
        "enable": True,
        "iconColor": "blue",
        "datasource": queries.BY_TIME,
        "query": queries.LAUNCHES,
        "timeField": "@timestamp",
        "textField": "event",
        "tagsField": "stage",
    }


def _others() -> dict[str, Any]:
    """Return the menu of the kit's other dashboards, with the same run and times."""
    return {
        "type": "dashboards",
        "title": "verl",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }
