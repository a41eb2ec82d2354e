"""Grafana: the dashboard of a run, and the lines of one step in Explore."""

import json
from urllib.parse import quote, urlencode

from verl_ingest.links.kibana import phrase

DASHBOARD = "verl-run"  # uid of the dashboard of one run
DATA_SOURCE = "verl"  # uid of the Elasticsearch data source
MOST_LINES = 500


def dashboard(grafana_url: str, run_id: str, step: int, *, since: str, until: str, rank: int | None = None) -> str:
    """Return the URL of the run's dashboard; `since` and `until` are ms since 1970 as text, or such as now-30d."""
    variables = {"var-run_id": run_id, "var-step": step} | ({} if rank is None else {"var-rank": rank})
    return f"{grafana_url}/d/{DASHBOARD}?{_query({'from': since, 'to': until, **variables})}"


def explore(grafana_url: str, run_id: str, step: int, *, since: str, until: str, rank: int | None = None) -> str:
    """Return the URL of the step's lines in Explore; times as those of `dashboard`."""
    source = {"type": "elasticsearch", "uid": DATA_SOURCE}
    query = {
        "refId": "A",
        "datasource": source,
        "query": f"run_id:{phrase(run_id)} AND step:{step}" + ("" if rank is None else f" AND rank:{rank}"),
        "metrics": [{"id": "1", "type": "logs", "settings": {"limit": str(MOST_LINES)}}],
        "bucketAggs": [],
        "timeField": "@timestamp",
    }
    pane = {"datasource": DATA_SOURCE, "queries": [query], "range": {"from": since, "to": until}}
    panes = json.dumps({"verl": pane}, ensure_ascii=False, separators=(",", ":"))
    return f"{grafana_url}/explore?{_query({'schemaVersion': 1, 'panes': panes})}"


def _query(values: dict[str, str | int]) -> str:
    return urlencode(values, quote_via=quote, safe="")
