"""Read what the searches of bodies.py answer."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from verl_ingest.query import bodies
from verl_ingest.query.store import Launch, Mark, RunRow, Share
from verl_ingest.query.times import milliseconds


def run_row(bucket: Mapping[str, Any]) -> RunRow:
    """Return the run that a bucket of `bodies.runs` describes."""
    first, last = _span(bucket["dated"]) or _span(bucket)
    return RunRow(
        run_id=bucket["key"]["run_id"],
        records=bucket["doc_count"],
        first=first,
        last=last,
        newest_step=_mark(bucket["step"]),
        newest_error=_mark(bucket["error"]),
        read=_span(bucket["read"]),
    )


def _span(bucket: Mapping[str, Any]) -> tuple[int, int] | None:
    found = bucket["first"]["value"], bucket["last"]["value"]
    return None if None in found else (int(found[0]), int(found[1]))


def _mark(bucket: Mapping[str, Any]) -> Mark | None:
    for hit in bucket["newest"]["hits"]["hits"]:
        found = hit["_source"]
        return Mark(milliseconds(found), found["time_source"] in bodies.DATED, found.get("step"))
    return None


def share(counts: Mapping[str, Any] | None) -> Share:
    """Return what `bodies.share` counts; nothing is counted where no index matches."""
    if counts is None:
        return Share(n=0, hits=0)
    parts = counts["n"].get("parts", {"buckets": []})["buckets"]
    return Share(
        n=counts["n"]["doc_count"],
        hits=counts["hits"]["doc_count"],
        nonfinite=counts.get("nonfinite", {"doc_count": 0})["doc_count"],
        parts={part["key"]: part["doc_count"] for part in parts},
    )


def pace(aggregations: Mapping[str, Any]) -> list[float]:
    """Return the seconds from the end of each step to that of the next; steps whose lines have times, where some do."""
    steps = aggregations["dated"]["steps"]["buckets"] or aggregations["steps"]["buckets"]
    gaps = [
        (step["end"]["value"] - before["end"]["value"]) / 1_000
        for before, step in pairwise(steps)
        if step["key"] == before["key"] + 1
    ]
    return [gap for gap in gaps if gap > 0]


def launch(bucket: Mapping[str, Any]) -> Launch:
    """Return the process that a bucket of `bodies.launches` describes."""
    return Launch(
        attempt=bucket["key"]["attempt"],
        host=bucket["key"]["host"],
        pid=bucket["key"]["pid"],
        first_step=int(bucket["first_step"]["value"]),
        last_step=int(bucket["last_step"]["value"]),
        first=int(bucket["first"]["value"]),
        last=int(bucket["last"]["value"]),
    )
