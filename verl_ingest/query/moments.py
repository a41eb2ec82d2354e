"""The searches from a time to a step and back."""

from collections.abc import Mapping
from typing import Any

from verl_ingest.query.bodies import IS_DATED, SAYS_STEP, Body, of_run
from verl_ingest.query.times import iso

TIME = {"field": "@timestamp"}
ENDS = {"first": {"min": TIME}, "last": {"max": TIME}}


def step_at(run_id: str, time: int, labels: Mapping[str, Any], *, before: bool, dated: bool) -> Body:
    """Return the body that finds the last record up to a time that has a step, or the first one after it."""
    window = {"lte" if before else "gt": iso(time)}
    return {
        "size": 1,
        "track_total_hits": False,
        "query": _labelled(run_id, window, labels, dated),
        "sort": [{"@timestamp": "desc" if before else "asc"}],
        "_source": ["step"],
    }


def step_in(run_id: str, since: int, until: int, labels: Mapping[str, Any], *, dated: bool) -> Body:
    """Return the body that finds the step with the most records from `since` on and before `until`."""
    most = {"terms": {"field": "step", "size": 1, "order": [{"_count": "desc"}, {"_key": "asc"}]}}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _labelled(run_id, {"gte": iso(since), "lt": iso(until)}, labels, dated),
        "aggs": {"steps": most},
    }


def span(run_id: str, step: int) -> Body:
    """Return the body that tells when a step began and ended."""
    return {
        "size": 0,
        "track_total_hits": False,
        "query": {"bool": {"filter": [of_run(run_id), {"term": {"step": step}}]}},
        "aggs": {**ENDS, "dated": {"filter": IS_DATED, "aggs": ENDS}},
    }


def _labelled(run_id: str, window: Mapping[str, str], labels: Mapping[str, Any], dated: bool) -> Body:
    """Return the query for records of a run that say their step; the label `metric` asks for those that have it."""
    exact = [{"term": {name: value}} for name, value in labels.items() if name != "metric"]
    metric = [{"exists": {"field": f"metrics.{labels['metric']}"}}] if "metric" in labels else []
    of = [of_run(run_id), SAYS_STEP, {"range": {"@timestamp": window}}, *exact, *metric]
    return {"bool": {"filter": [*of, *([IS_DATED] if dated else [])]}}
