"""What panels ask Elasticsearch, in the form that Grafana's data source takes, and what it calls the columns.

Names with ${} are variables of the dashboards. By step goes to the data source without days, by time to that of the
daily indices. Settings are texts, as Grafana's own editor writes them.
"""

from collections.abc import Sequence
from typing import Any

from verl_ingest.catalog import metrics

Target = dict[str, Any]
Aggregation = dict[str, Any]

BY_TIME = {"type": "elasticsearch", "uid": "${datasource}"}
BY_STEP = {"type": "elasticsearch", "uid": "${steps}"}
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}

# All of a run since the launch that is chosen; the default is the newest.
RUN = "run_id:${run_id:lucene} AND @timestamp:[${attempt} TO *]"
# What says that a launch began: of one process, with a time of its own. The inner brackets are needed: Lucene reads
# `a OR NOT b` as `a AND NOT b`.
LAUNCHES = (
    "run_id:${run_id:lucene} AND event:(resume OR config) AND (rank:0 OR (NOT _exists_:rank)) AND NOT time_source:read"
)
METRICS = f"{RUN} AND kind:metric"
OF_RANKS = "(rank:${rank})"
OF_STAGES = "(stage:${stage})"
CHOSEN = "metrics.${metric}"  # the metric that the variable names
WITH_CHOSEN = "_exists_:metrics.${metric:lucene}"

ALL = "10000"  # buckets: left out or 0 means 500, and ranks vanish without a word
MOST = "500"  # records or lines in a panel
# What the data source calls the numbers of a table.
_NAMES = {"count": "Count", "avg": "Average", "max": "Max", "cardinality": "Unique Count"}


def fields_of(name: str) -> list[str]:
    """Return the fields that hold a metric of the catalogue, best spelling first."""
    return [f"metrics.{spelling}" for spelling in metrics.load().names_of(name)]


def printed(name: str) -> str:
    """Return how logs spell a metric of the catalogue, in the best way; the first of its names is the kit's own."""
    return metrics.load().names_of(name)[1]


def with_any(fields: Sequence[str]) -> str:
    """Return the condition that a record has one of these fields."""
    return f"({' OR '.join(f'_exists_:{_escaped(field)}' for field in fields)})"


def averages(fields: Sequence[str]) -> list[Aggregation]:
    """Return the mean of each field."""
    return [{"id": str(number), "type": "avg", "field": field} for number, field in enumerate(fields, start=1)]


def percentiles(field: str, *percents: int) -> list[Aggregation]:
    """Return these percentiles of a field; where a bucket has no value they are 0, so ask for records that have one."""
    return [{"id": "1", "type": "percentiles", "field": field, "settings": {"percents": [str(p) for p in percents]}}]


def deviation(field: str, end: str) -> list[Aggregation]:
    """Return the mean of a field plus or minus its standard deviation; `end` is upper or lower."""
    meta = {f"std_deviation_bounds_{end}": True}
    return [{"id": "1", "type": "extended_stats", "field": field, "meta": meta, "settings": {"sigma": "1"}}]


def column(aggregations: Sequence[Aggregation], wanted: Aggregation) -> str:
    """Return what the data source calls the column of one of the numbers of a table."""
    alone = [aggregation["type"] for aggregation in aggregations].count(wanted["type"]) == 1
    return _NAMES[wanted["type"]] + ("" if alone else f" {wanted['field']}")


def terms(field: str, *, size: str = ALL, order: str = "asc", order_by: str = "_key") -> Aggregation:
    """Split by the values of a field."""
    settings = {"size": size, "order": order, "orderBy": order_by, "min_doc_count": "1"}
    return {"type": "terms", "field": field, "settings": settings}


def by_step(aggregations: Sequence[Aggregation], *split: Aggregation, where: str = METRICS, ref: str = "A") -> Target:
    """Return a query for a table with a row a step, or a row for each value of `split` and step."""
    steps = {
        "type": "histogram",
        "field": "step",
        # By default 1000 steps are one, and steps without records are zeros.
        "settings": {"interval": "${every}", "min_doc_count": "1"},
    }
    return _target(BY_STEP, aggregations, [*split, steps], where, ref)


def by_time(
    aggregations: Sequence[Aggregation], *split: Aggregation, where: str = METRICS, alias: str, ref: str = "A"
) -> Target:
    """Return a query for a series over time, or one for each value of `split`; `alias` is what it is called."""
    times = {
        "type": "date_histogram",
        "field": "@timestamp",
        "settings": {"interval": "auto", "min_doc_count": "1", "trimEdges": "0"},
    }
    return _target(BY_TIME, aggregations, [*split, times], where, ref) | {"alias": alias}


def mean_by_time(name: str, *split: Aggregation, alias: str, where: str = "*", ref: str = "A") -> Target:
    """Return a query for the mean of a metric over time; `name` is as printed."""
    field = f"metrics.{name}"
    condition = f"{METRICS} AND {with_any([field])} AND {where}"
    return by_time(averages([field]), *split, where=condition, alias=alias, ref=ref)


def table(aggregations: Sequence[Aggregation], *split: Aggregation, where: str = METRICS) -> Target:
    """Return a query for a table with a row for each value of `split`."""
    return _target(BY_STEP, aggregations, split, where, "A")


def documents(where: str) -> Target:
    """Return a query for the newest records themselves, a row each."""
    return _target(BY_STEP, [{"id": "1", "type": "raw_data", "settings": {"size": MOST}}], [], where, "A")


def lines(where: str) -> Target:
    """Return a query for the newest log lines."""
    return _target(BY_STEP, [{"id": "1", "type": "logs", "settings": {"limit": MOST}}], [], where, "A")


def prometheus(expression: str, legend: str) -> Target:
    """Return a query of Prometheus."""
    return {
        "refId": "A",
        "datasource": PROMETHEUS,
        "expr": expression,
        "legendFormat": legend,
        "range": True,
        "editorMode": "code",
    }


def _target(
    source: dict[str, str], aggregations: Sequence[Aggregation], buckets: Sequence[Aggregation], where: str, ref: str
) -> Target:
    numbered = [{"id": str(number), **bucket} for number, bucket in enumerate(buckets, start=len(aggregations) + 1)]
    return {
        "refId": ref,
        "datasource": source,
        "query": where,
        "metrics": list(aggregations),
        "bucketAggs": numbered,
        "timeField": "@timestamp",
    }


def _escaped(field: str) -> str:
    """Write the name of a field for Lucene's query language, where / begins a pattern and a space ends the name."""
    return field.replace("/", r"\/").replace(" ", r"\ ")
