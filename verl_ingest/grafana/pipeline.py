"""Dashboard `Pipeline health`: do the agents read, deliver, retry, drop; are records flagged?

The names are those of Fluent Bit 5.1.1 at /api/v2/metrics/prometheus.
"""

from verl_ingest.grafana import panels, queries
from verl_ingest.grafana.board import Dashboard, Row, dashboard
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.variables import Variable
from verl_ingest.links import points

UID = "verl-pipeline"
TITLE = "verl: pipeline health"
OF_AGENT = 'instance=~"$agent"'


def build(variables: list[Variable]) -> Dashboard:
    """Return the dashboard."""
    rows = [
        Row(
            [
                _rate("Records read", "By input, a second.", "input_records_total", _BOTH),
                _rate("Records delivered", "By output, a second.", "output_proc_records_total", _BOTH),
            ]
        ),
        Row(
            [
                _rate("Retries", "Requests sent again; many mean a slow server.", "output_retries_total", _BOTH),
                _rate("Errors", "Requests that failed for good.", "output_errors_total", _BOTH),
                _rate("Records dropped", "Lost, unless dead letters have them.", "output_dropped_records_total", _BOTH),
            ],
            height=7,
        ),
        Row(
            [
                _gauge("Chunks waiting", "Read, not yet delivered: how far behind.", "input_storage_chunks", _BOTH),
                _gauge("Input paused", "1: an input waits for the server.", "input_ingestion_paused", _BOTH),
                _rate("Lines cut", "Lines longer than the limit.", "input_long_line_truncated_total", _BOTH),
            ],
            height=7,
        ),
        Row([_records(), _flagged()]),
        Row([_unparsed()], height=9),
    ]
    about = "The agents' own metrics, and what the records say of themselves. Click on a point to open its step."
    return dashboard(UID, TITLE, about, variables, rows, by_run=False)


_BOTH = "{{instance}} {{name}}"


def agent() -> Variable:
    """Return the choice of agents, all at first."""
    return {
        "type": "query",
        "name": "agent",
        "label": "Agent",
        "datasource": queries.PROMETHEUS,
        "query": "label_values(fluentbit_uptime, instance)",
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _rate(title: str, description: str, metric: str, legend: str) -> Panel:
    return _agents(title, description, f"rate(fluentbit_{metric}{{{OF_AGENT}}}[$__rate_interval])", legend)


def _gauge(title: str, description: str, metric: str, legend: str) -> Panel:
    return _agents(title, description, f"fluentbit_{metric}{{{OF_AGENT}}}", legend)


def _agents(title: str, description: str, expression: str, legend: str) -> Panel:
    return panels.timeline(title, description, [queries.prometheus(expression, legend)], link=(points.TIME,))


def _records() -> Panel:
    target = queries.by_time([_COUNT], queries.terms("kind"), where=queries.RUN, alias="{{term kind}}")
    return panels.timeline(
        "Records by kind",
        "What Elasticsearch has of the run; a gap is the run's or the pipeline's.",
        [target],
        link=(points.TIME,),
    )


def _flagged() -> Panel:
    where = f"{queries.RUN} AND _exists_:flags"
    target = queries.by_time([_COUNT], queries.terms("flags"), where=where, alias="{{term flags}}")
    return panels.timeline(
        "Flagged records",
        "What was repaired, cut or assumed; docs/reference/fields.md explains each flag.",
        [target],
        link=(points.TIME,),
    )


def _unparsed() -> Panel:
    return panels.log_lines(
        "Lines that were not understood",
        "Kept as text, newest first; those that begin a flood deserve a look.",
        queries.lines(f"{queries.RUN} AND kind:unparsed"),
        link=(points.STEP, points.RANK_OF_ROW),
    )


_COUNT = {"id": "1", "type": "count"}
