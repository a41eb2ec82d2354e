"""Kibana: Discover with the lines of one step, and the way from there to its page."""

from verl_ingest.links import rison

DATA_VIEW = "verl"  # the id the data view is installed with; under another one Kibana would show its default view
COLUMNS = ("stage", "rank", "metric_name", "value", "log.level", "message")


def discover(kibana_url: str, run_id: str, step: int, *, since: str, until: str, rank: int | None = None) -> str:
    """Return Discover's URL; `kibana_url` has base path and space.

    `since` and `until` are ISO 8601 texts or such as now-30d; Kibana ignores numbers without a word. Run and step are
    the query, the rank is a filter that one click switches off.
    """
    tab = {"tabId": "new"}  # else Kibana 9 closes the user's open tabs
    pinned = {
        "filters": [],
        "refreshInterval": {"pause": True, "value": 60_000},
        "time": {"from": since, "to": until},
    }
    own = {
        "columns": COLUMNS,
        "dataSource": {"dataViewId": DATA_VIEW, "type": "dataView"},
        "filters": [] if rank is None else [_pill("rank", rank)],
        "interval": "auto",
        "query": {"language": "kuery", "query": f"run_id : {phrase(run_id)} and step : {step}"},
        "sort": [["@timestamp", "asc"]],
    }
    return f"{kibana_url}/app/discover#/?_tab={rison.in_url(tab)}&_g={rison.in_url(pinned)}&_a={rison.in_url(own)}"


def page_of_step_key(service_url: str) -> str:
    """Return the template of a step's page for Kibana's links: it puts a step_key, escaped, where {{value}} stands."""
    return f"{service_url}/drilldown?step_key={{{{value}}}}"


def phrase(text: str) -> str:
    r"""Write a text as a phrase of KQL or Lucene, in which only \ and " mean something."""
    escaped = text.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


def _pill(field: str, value: int) -> rison.Value:
    """Return the filter that Discover's own button for a value makes."""
    return {
        "$state": {"store": "appState"},
        "meta": {
            "alias": None,
            "disabled": False,
            "field": field,
            "index": DATA_VIEW,
            "key": field,
            "negate": False,
            "params": {"query": value},
            "type": "phrase",
        },
        "query": {"match_phrase": {field: value}},
    }
