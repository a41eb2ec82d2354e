"""Data links of Grafana's panels: templates that Grafana fills in with what it knows of the point that was clicked.

`back` is last, since some versions of Grafana decode the whole link. A field's number is asked for with .numeric, as
its text is written for people (1.25 K).
"""

from urllib.parse import quote

SERVICE = "service"  # the variable of a dashboard that has the address of the kit's service

STEP = "step=${__data.fields.step.numeric}"
TIME = "t=${__value.time}&bucket_ms=${__interval_ms}"
RANK_OF_FIELD = "rank=${__field.name:percentencode}"
RANK_OF_SERIES = "rank=${__series.name:percentencode}"
RANK_OF_ROW = "rank=${__data.fields.rank:percentencode}"
STAGE_OF_FIELD = "stage=${__field.name:percentencode}"
METRIC_OF_FIELD = "metric=${__field.name:percentencode}"
METRIC_OF_SERIES = "metric=${__series.name:percentencode}"
METRIC_OF_VARIABLE = "metric=${metric:percentencode}"


def drilldown(*parts: str) -> str:
    """Return the template of a link to a step; `parts` are among the constants above, or `metric`."""
    query = "&".join((*parts, "run_id=${run_id:percentencode}", "back=${__url:percentencode}"))
    return f"${{{SERVICE}:raw}}/drilldown?{query}"


def metric(name: str) -> str:
    """Return the part of a link that names a metric, as the catalogue or a log has it."""
    return f"metric={quote(name, safe='')}"


def by_step_key(service_url: str) -> str:
    """Return the template of the link on a record's `step_key`, wherever Grafana shows the record."""
    return f"{service_url}/drilldown?step_key=${{__value.raw:percentencode}}"
