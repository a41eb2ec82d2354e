"""What Grafana makes of a panel's query: the search it sends to Elasticsearch, and the tables it reads from the answer.

Follows the Elasticsearch data source of Grafana 11.6 to 13 in what the kit's dashboards use.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest import grafana

Values = Mapping[str, Any]
Frame = dict[str, Any]  # refId, name, fields: a list of {name, type, values}

NAMES = {
    "count": "Count",
    "avg": "Average",
    "max": "Max",
    "cardinality": "Unique Count",
    "extended_stats": "Extended Stats",
}
BUCKET_MS = 10_000
ALL = "* OR *:*"
DEFAULTS = {
    "attempt": "0",
    "stage": ALL,
    "rank": ALL,
    "step": "*",
    "every": "1",
    "worst": "desc",
    "metric": "kl_divergence",
}


def panel_of(uid: str, title: str) -> dict[str, Any]:
    """Return one panel of the kit's dashboards."""
    (found,) = [panel for panel in panels_of(uid) if panel["title"] == title]
    return found


def panels_of(uid: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, those in folded rows too."""
    (body,) = [dashboard.body for dashboard in grafana.dashboards() if dashboard.uid == uid]
    return [
        inner for panel in body["panels"] for inner in (panel.get("panels", ()) if panel["type"] == "row" else [panel])
    ]


def ask(client: Elasticsearch, panel: Mapping[str, Any], span: tuple[int, int], **values: Any) -> list[Frame]:
    """Send all queries of a panel and return the tables, as they are before the panel's transformations."""
    frames = []
    for target in panel["targets"]:
        filled = fill_in(target, {**DEFAULTS, **values})
        answer = client.search(index="verl-*", **search(filled, span))
        assert answer["_shards"]["failed"] == 0, answer["_shards"]
        frames += read(filled, answer.body)
    return frames


def fill_in(target: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Put the values of variables into a query: escaped for Lucene in its condition, as they are elsewhere."""
    query = _replace(target["query"], values, _lucene)
    rest = _replace(json.dumps({**target, "query": ""}), values, str)
    return json.loads(rest) | {"query": query}


def search(target: Mapping[str, Any], span: tuple[int, int]) -> dict[str, Any]:
    """Return the search that a query becomes."""
    times = {"range": {"@timestamp": {"gte": span[0], "lte": span[1], "format": "epoch_millis"}}}
    condition = {"query_string": {"analyze_wildcard": True, "query": target["query"]}}
    body: dict[str, Any] = {"query": {"bool": {"filter": [times, condition]}}}
    if not target["bucketAggs"]:
        settings = target["metrics"][0]["settings"]
        size = int(settings.get("size") or settings["limit"])
        return body | {"size": size, "sort": [{"@timestamp": {"order": "desc"}}]}
    aggregations = {metric["id"]: _metric(metric) for metric in target["metrics"] if metric["type"] != "count"}
    for bucket in reversed(target["bucketAggs"]):
        inner = dict(aggregations)
        order = bucket["settings"].get("orderBy")
        if order and order != "_key":  # the number that orders the terms is computed beside them, too
            inner[order] = _metric(next(metric for metric in target["metrics"] if metric["id"] == order))
        aggregations = {bucket["id"]: {**_bucket(bucket, span), **({"aggs": inner} if inner else {})}}
    return body | {"size": 0, "aggs": aggregations}


def read(target: Mapping[str, Any], answer: Mapping[str, Any]) -> list[Frame]:
    """Return the tables that Grafana reads from an answer."""
    if not target["bucketAggs"]:
        return [_documents(target, [hit["_source"] for hit in answer["hits"]["hits"]])]
    rows = list(_rows(target["bucketAggs"], answer["aggregations"], {}))
    if target["bucketAggs"][-1]["type"] == "date_histogram":
        return _series(target, rows)
    return [_table(target, rows)] if rows else []


def column(frame: Frame, name: str) -> list[Any]:
    """Return the values of a column."""
    (found,) = [field["values"] for field in frame["fields"] if field["name"] == name]
    return found


def _rows(buckets: list[Mapping[str, Any]], answer: Mapping[str, Any], keys: Mapping[str, Any]):
    first, *rest = buckets
    for bucket in answer[first["id"]]["buckets"]:
        found = {**keys, first["field"]: bucket["key"]}
        if rest:
            yield from _rows(rest, bucket, found)
        else:
            yield found, bucket


def _table(target: Mapping[str, Any], rows: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Frame:
    *outer, last = [bucket["field"] for bucket in target["bucketAggs"]]
    columns: dict[str, list[Any]] = {}
    for keys, bucket in rows:
        for field in outer:
            columns.setdefault(field, []).append(str(keys[field]))
        columns.setdefault(last, []).append(keys[last])
        for metric in target["metrics"]:
            for name, value in _values(target, metric, bucket):
                columns.setdefault(name, []).append(value)
    return _frame(target, [_field(name, values) for name, values in columns.items()])


def _values(target: Mapping[str, Any], metric: Mapping[str, Any], bucket: Mapping[str, Any]):
    kind = metric["type"]
    if kind == "count":
        yield NAMES[kind], bucket["doc_count"]
    elif kind == "percentiles":
        for percent, value in sorted(bucket[metric["id"]]["values"].items()):
            yield f"p{percent} {metric['field']}", value or 0
    elif kind == "extended_stats":
        (enabled,) = metric["meta"]
        end = enabled.removeprefix("std_deviation_bounds_")
        yield NAMES[kind], bucket[metric["id"]]["std_deviation_bounds"][end]
    else:
        alone = [other["type"] for other in target["metrics"]].count(kind) == 1
        yield NAMES[kind] + ("" if alone else f" {metric['field']}"), bucket[metric["id"]]["value"]


def _series(target: Mapping[str, Any], rows: list[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Frame]:
    (metric,) = target["metrics"]
    found: dict[str, list[tuple[int, Any]]] = {}
    for keys, bucket in rows:
        name = re.sub(r"\{\{term (.+?)\}\}", lambda match, keys=keys: str(keys[match[1]]), target["alias"])
        value = bucket["doc_count"] if metric["type"] == "count" else bucket[metric["id"]]["value"]
        found.setdefault(name, []).append((keys["@timestamp"], value))
    return [
        _frame(target, [_field("Time", [t for t, _ in points], "time"), _field("Value", [v for _, v in points])], name)
        for name, points in found.items()
    ]


def _documents(target: Mapping[str, Any], documents: list[Mapping[str, Any]]) -> Frame:
    flat = [_flat(document) for document in documents]
    names = sorted({name for document in flat for name in document})
    fields = [_field(name, [document.get(name) for document in flat]) for name in names]
    return _frame(target, fields)


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def _frame(target: Mapping[str, Any], fields: list[dict[str, Any]], name: str = "") -> Frame:
    return {"refId": target["refId"], "name": name, "fields": fields}


def _field(name: str, values: list[Any], kind: str | None = None) -> dict[str, Any]:
    if kind is None:
        given = [value for value in values if value is not None]
        kind = "time" if name == "@timestamp" else "string" if given and isinstance(given[0], str) else "number"
    return {"name": name, "type": kind, "values": values}


def _bucket(bucket: Mapping[str, Any], span: tuple[int, int]) -> dict[str, Any]:
    settings, field = bucket["settings"], bucket["field"]
    least = int(settings["min_doc_count"])
    if bucket["type"] == "terms":
        order = {settings["orderBy"]: settings["order"]}
        return {"terms": {"field": field, "size": int(settings["size"]), "order": order, "min_doc_count": least}}
    if bucket["type"] == "histogram":
        return {"histogram": {"field": field, "interval": int(settings["interval"]), "min_doc_count": least}}
    times = {"field": field, "fixed_interval": f"{BUCKET_MS}ms", "min_doc_count": least, "format": "epoch_millis"}
    return {"date_histogram": {**times, "extended_bounds": {"min": span[0], "max": span[1]}}}


def _metric(metric: Mapping[str, Any]) -> dict[str, Any]:
    settings = metric.get("settings", {})
    if "percents" in settings:
        settings = {"percents": [float(percent) for percent in settings["percents"]]}
    return {metric["type"]: {"field": metric["field"], **settings}}


def _replace(text: str, values: Values, write: Any) -> str:
    return re.sub(
        r"\$\{(\w+)(?::lucene)?\}", lambda match: write(values[match[1]]) if match[1] in values else match[0], text
    )


def _lucene(value: Any) -> str:
    r"""Write a value for Lucene's query language; what All stands for is written as it is."""
    if value in ("*", ALL):
        return value
    if isinstance(value, list):
        return "(" + " OR ".join(f'"{_escape(one)}"' for one in value) + ")"
    return _escape(value)


def _escape(value: Any) -> str:
    return re.sub(r"""([!*+\-=<>\s&|()\[\]{}^~?:\\/"])""", r"\\\1", str(value))
