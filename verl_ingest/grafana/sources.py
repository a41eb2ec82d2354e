"""The data sources of the dashboards."""

from typing import Any

from verl_ingest.index import mappings
from verl_ingest.links import grafana, points

BY_TIME = grafana.DATA_SOURCE
BY_STEP = "verl-steps"
PROMETHEUS = "verl-prometheus"

DataSource = dict[str, Any]


def by_password(username: str, password: str) -> DataSource:
    """Return the part of a data source by which Grafana logs in to Elasticsearch as a user."""
    return {"basicAuth": True, "basicAuthUser": username, "secureJsonData": {"basicAuthPassword": password}}


def data_sources(
    elasticsearch_url: str, prometheus_url: str, service_url: str, login: DataSource | None = None
) -> list[DataSource]:
    """Return the data sources as Grafana takes them; the addresses are those that Grafana itself reaches."""
    elastic = {"type": "elasticsearch", "access": "proxy", "url": elasticsearch_url, **(login or {})}
    options = {
        "timeField": "@timestamp",
        "timeInterval": "10s",
        "logMessageField": "message",
        "logLevelField": "log.level",
        "maxConcurrentShardRequests": 5,
        "dataLinks": [
            {"field": "^step_key$", "url": points.by_step_key(service_url), "urlDisplayLabel": "Open the step"}
        ],
    }
    return [
        {
            **elastic,
            "name": "verl by time",
            "uid": BY_TIME,
            "jsonData": {**options, "index": f"[{mappings.RECORDS_PREFIX}]YYYY.MM.DD", "interval": "Daily"},
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
