"""The variables that dashboards have at their top, as plain dicts."""

import json
from typing import Any

from verl_ingest.catalog import metrics
from verl_ingest.grafana import queries
from verl_ingest.links import points

Variable = dict[str, Any]

# What `All` stands for in a query: records that have no rank, or no stage, too.
ANY = "* OR *:*"
# An open beginning would make Elasticsearch refuse to count dates with nanoseconds by time.
ALL_LAUNCHES = "0"


def source(name: str, label: str, kind: str, uid: str) -> Variable:
    """Return the choice of a data source; `uid` is that of the kit's own."""
    current = {"text": uid, "value": uid}
    return {"type": "datasource", "name": name, "label": label, "query": kind, "current": current, "refresh": 1}


def service(url: str) -> Variable:
    """Return the address of the kit's service; a constant, so that no link to a dashboard can change it."""
    return {"type": "constant", "name": points.SERVICE, "query": url, "hide": 2, "skipUrlSync": True}


def run() -> Variable:
    """Return the choice of a run: those of the time range, most records first."""
    return _terms("run_id", "Run", "run_id", order_by="doc_count", order="desc")


def attempt() -> Variable:
    """Return the choice of the launch from which on records count: the newest of the time range comes first.

    Records have no number of their attempt, but a launch that says so is an event with a time.
    """
    found = _terms("attempt", "Since launch", "@timestamp", query=queries.LAUNCHES, order_by="key", order="desc")
    return found | {"includeAll": True, "allValue": ALL_LAUNCHES}


def rank() -> Variable:
    """Return the choice of ranks, all at first."""
    query = "run_id:${run_id:lucene}"
    return _terms("rank", "Rank", "rank", query=query, order_by="key", order="asc") | _SEVERAL


def stage() -> Variable:
    """Return the choice of stages, all at first."""
    return _custom("stage", "Stage", {stage: stage for stage in metrics.STAGES}) | _SEVERAL


def step() -> Variable:
    """Return the step whose lines are shown, all at first; links from a step's page fill it in."""
    return {"type": "textbox", "name": "step", "label": "Step", "query": "*", "current": {"text": "*", "value": "*"}}


def metric(first: str) -> Variable:
    """Return the choice of a metric as printed: every number that the newest index has; `first` is chosen at first."""
    return {
        "type": "query",
        "name": "metric",
        "label": "Metric",
        "datasource": queries.BY_STEP,
        "query": json.dumps({"find": "fields", "type": "number"}),
        "regex": r"/^metrics\.(.+)$/",
        "refresh": 1,
        "sort": 1,
        "current": {"text": first, "value": first},
    }


def every() -> Variable:
    """Return how many steps make a point: Elasticsearch refuses more than 65,536 points."""
    return _custom("every", "Steps a point", {text: text for text in ("1", "2", "5", "10", "20", "50", "100", "500")})


def worst() -> Variable:
    """Return which ranks are the worst ones."""
    return _custom("worst", "Worst is", {"highest": "desc", "lowest": "asc"})


_SEVERAL = {"multi": True, "includeAll": True, "allValue": ANY, "current": {"text": ["All"], "value": ["$__all"]}}


def _terms(name: str, label: str, field: str, *, query: str = "*", order_by: str, order: str) -> Variable:
    find = {"find": "terms", "field": field, "query": query, "size": 10_000, "orderBy": order_by, "order": order}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": queries.BY_STEP,
        "query": json.dumps(find),
        "refresh": 2,  # also when the time range changes: only what lies in it is offered
        "sort": 0,
    }


def _custom(name: str, label: str, values: dict[str, str]) -> Variable:
    first = next(iter(values.items()))
    query = ", ".join(text if text == value else f"{text} : {value}" for text, value in values.items())
    return {
        "type": "custom",
        "name": name,
        "label": label,
        "query": query,
        "current": {"text": first[0], "value": first[1]},
        "options": [
            {"text": text, "value": value, "selected": (text, value) == first} for text, value in values.items()
        ],
    }
