"""Grafana: the dashboard of a run, the records of one step in Explore, and the way back to where one came from."""

import json
import re
from urllib.parse import quote, urlencode, urlsplit

from verl_ingest.links.kibana import phrase

DASHBOARD = "verl-run"  # uid of the dashboard of one run
DATA_SOURCE = "verl"  # uid of the Elasticsearch data source
MOST_LINES = 500


def dashboard(grafana_url: str, run_id: str, step: int, *, since: str, until: str, rank: int | None = None) -> str:
    """Return the URL of the run's dashboard; `since` and `until` are ms since 1970 as text, or such as now-30d."""
    # All launches: the step may be of an earlier one than the newest, which the dashboard shows by itself.
    variables = {"var-run_id": run_id, "var-step": step, "var-attempt": "$__all"}
    variables |= {} if rank is None else {"var-rank": rank}
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


def way_back(grafana_url: str | None, back: str | None) -> str | None:
    """Return the whole address that `back` names, None where that is not a page of Grafana.

    `back` is a path and query as Grafana's own variable for them has it, or an address below `grafana_url`.
    """
    # Browsers read a backslash as a slash, drop line ends, and walk up at a segment of two dots.
    if not grafana_url or not back or re.search(r"[\\\x00-\x20\x7f]|(^|/)(\.|%2e){1,2}($|[/?#])", back, re.IGNORECASE):
        return None
    own = urlsplit(grafana_url)
    if re.match("/(?!/)", back):
        inside = back if back.startswith(f"{own.path}/") else own.path + back
        return f"{own.scheme}://{own.netloc}{inside}"
    return back if back.startswith(f"{grafana_url}/") else None


def _query(values: dict[str, str | int]) -> str:
    return urlencode(values, quote_via=quote, safe="")
