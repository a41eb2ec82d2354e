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


def by_api_key(key: str) -> DataSource:
    """Return the part of a data source by which Grafana logs in to Elasticsearch with an API key."""
    # As a header: the option for a key exists in the newest versions only.
    return {
        "jsonData": {"httpHeaderName1": "Authorization"},
        "secureJsonData": {"httpHeaderValue1": f"ApiKey {key}"},
    }


def data_sources(
    elasticsearch_url: str, prometheus_url: str | None, service_url: str, login: DataSource
) -> list[DataSource]:
    """Return the data sources as Grafana takes them; the addresses are those that Grafana itself reaches.

    Without `prometheus_url` there is none for the agents' own metrics.
    """
    elastic = {"type": "elasticsearch", "access": "proxy", "url": elasticsearch_url, **login}
    options = {
        **login.get("jsonData", {}),
        "timeField": "@timestamp",
        "timeInterval": "10s",
        "logMessageField": "message",
        "logLevelField": "log.level",
        "maxConcurrentShardRequests": 5,
        "dataLinks": [
            {"field": "^step_key$", "url": points.by_step_key(service_url), "urlDisplayLabel": "Open the step"}
        ],
    }
    found = [
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
    ]
    if prometheus_url:
        found.append(
            {
                "type": "prometheus",
                "access": "proxy",
                "url": prometheus_url,
                "name": "verl agents",
                "uid": PROMETHEUS,
                "jsonData": {"httpMethod": "POST", "timeInterval": "15s"},
            }
        )
    return found
