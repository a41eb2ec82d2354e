"""The data sources of the dashboards."""

from typing import Any

from verl_ingest.index import mappings
from verl_ingest.links import grafana, points

BY_TIME = grafana.DATA_SOURCE
BY_STEP = "verl-steps"
PROMETHEUS = "verl-prometheus"

DataSource = dict[str, Any]


def data_sources(
    elasticsearch_url: str, prometheus_url: str, service_url: str, *, authorization: str | None = None
) -> list[DataSource]:
    """Return the data sources as Grafana's API takes them; `authorization` is what goes to Elasticsearch as header."""
    days = f"[{mappings.RECORDS_PREFIX}]YYYY.MM.DD"
    header: dict[str, Any] = {}
    if authorization:
        header = {"secureJsonData": {"httpHeaderValue1": authorization}}
    elastic = {"type": "elasticsearch", "access": "proxy", "url": elasticsearch_url, **header}
    options = {
        "timeField": "@timestamp",
        "timeInterval": "10s",
        "logMessageField": "message",
        "logLevelField": "log.level",
        "maxConcurrentShardRequests": 5,
        "dataLinks": [
            {"field": "^step_key$", "url": points.by_step_key(service_url), "urlDisplayLabel": "Open the step"}
        ],
    } | ({"httpHeaderName1": "Authorization"} if authorization else {})
    return [
        {
            **elastic,
            "name": "verl by time",
            "uid": BY_TIME,
            "jsonData": {**options, "index": days, "interval": "Daily"},
        },
        {
            **elastic,
            "name": "verl by step",
            "uid": BY_STEP,
            "jsonData": {**options, "index": mappings.ALL_PATTERN},
        },
        {
            "type": "prometheus",
            "access": "proxy",
            "url": prometheus_url,
            "name": "verl agents",
            "uid": PROMETHEUS,
            "jsonData": {"httpMethod": "POST", "timeInterval": "15s"},
        },
    ]
