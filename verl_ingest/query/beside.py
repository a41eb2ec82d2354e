"""The searches of what stands beside a step: its samples, their scores and those before, values not finite."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.query.bodies import AS_STORED, METRIC, MOST, SAMPLE, Body, in_segments, of_run
from verl_ingest.query.store import Key, Scores, Segment

BINS = 10
EMPTY = {"term": {"sample.output_length": 0}}
SCORE = {"field": "sample.score"}
SORTS = {
    "lowest": ("sample.score", "asc", "double"),
    "highest": ("sample.score", "desc", "double"),
    "longest": ("sample.output_length", "desc", "integer"),
    "first": ("step", "asc", "long"),
    "last": ("step", "desc", "long"),
}


def nonfinite_steps(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that lists the steps in which a metric was not finite, for each metric."""
    steps = {"steps": {"terms": {"field": "step", "size": MOST, "order": {"_key": "asc"}}}}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": {"bool": {"filter": [of_run(run_id), in_segments(segments), {"exists": {"field": "nonfinite"}}]}},
        "aggs": {"metrics": {"terms": {"field": "nonfinite", "size": MOST}, "aggs": steps}},
    }


def keys(run_id: str, names: Sequence[str]) -> Body:
    """Return the body that counts the records that have each metric, by stage and by whether they name a rank."""
    ranked = {"ranked": {"filter": {"exists": {"field": "rank"}}}}
    stages = {"stages": {"terms": {"field": "stage", "size": MOST, "missing": ""}, "aggs": ranked}}
    aggs = {
        f"n{number}": {"filter": {"exists": {"field": f"metrics.{name}"}}, "aggs": stages}
        for number, name in enumerate(names)
    }
    return {
        "size": 0,
        "track_total_hits": False,
        "query": {"bool": {"filter": [of_run(run_id), METRIC]}},
        "aggs": aggs,
    }


def read_keys(aggregations: Mapping[str, Any], names: Sequence[str]) -> dict[Key, int]:
    """Return how many records have each metric, from what `keys` answers."""
    found = {}
    for number, name in enumerate(names):
        for stage in aggregations[f"n{number}"]["stages"]["buckets"]:
            ranked = stage["ranked"]["doc_count"]
            found[Key(name, stage["key"] or None, True)] = ranked
            found[Key(name, stage["key"] or None, False)] = stage["doc_count"] - ranked
    return {key: count for key, count in found.items() if count}


def samples(run_id: str, segment: Segment, size: int, *, order: str) -> Body:
    """Return the body that finds samples in one of the orders of SORTS."""
    field, direction, kind = SORTS[order]
    # Only the samples' indices have these fields, and the snapshot of a run is of all of its indices.
    sort = {"order": direction, "missing": "_last", "unmapped_type": kind}
    return {
        "size": size,
        "track_total_hits": False,
        "query": {"bool": {"filter": [of_run(run_id), SAMPLE, in_segments([segment])]}},
        "sort": [{field: sort}, {"@timestamp": "asc"}],
    }


def prompt(run_id: str, prompt_id: str) -> Body:
    """Return the body that finds the samples of one prompt."""
    filters = [of_run(run_id), SAMPLE, {"term": {"sample.prompt_id": prompt_id}}]
    return {"query": {"bool": {"filter": filters}}, "sort": AS_STORED}


def sample(run_id: str, event_id: str) -> Body:
    """Return the body that finds one sample by its id."""
    filters = [of_run(run_id), SAMPLE, {"ids": {"values": [event_id]}}]
    return {"size": 1, "track_total_hits": False, "query": {"bool": {"filter": filters}}}


def score_extent(run_id: str, parts: Mapping[str, Sequence[Segment]]) -> Body:
    """Return the body that gives the number of samples, of empty ones, and the span of scores in each part."""
    return _of_parts(run_id, parts, {"score": {"stats": SCORE}, "empty": {"filter": EMPTY}})


def score_counts(run_id: str, parts: Mapping[str, Sequence[Segment]], low: float, width: float) -> Body:
    """Return the body that counts the scores of each part in bins of a width, the first one from `low` on."""
    histogram = {**SCORE, "interval": width, "offset": low % width, "min_doc_count": 1}
    return _of_parts(run_id, parts, {"bins": {"histogram": histogram}})


def bin_width(extents: Mapping[str, Any]) -> tuple[float, float]:
    """Return where the bins begin and how wide they are; equal scores all fall into one bin."""
    spans = [part["score"] for part in extents.values() if part["score"]["count"]]
    low, high = min(span["min"] for span in spans), max(span["max"] for span in spans)
    return low, (high - low) / BINS or 1.0


def scores(extent: Mapping[str, Any], counted: Mapping[str, Any], low: float, width: float) -> Scores:
    """Return the scores of one part; the greatest one belongs to the last bin."""
    counts = [0] * BINS
    for found in counted["bins"]["buckets"]:
        counts[min(round((found["key"] - low) / width), BINS - 1)] += found["doc_count"]
    span = extent["score"]
    return Scores(span["count"], extent["empty"]["doc_count"], span["avg"], low, width, tuple(counts))


def _of_parts(run_id: str, parts: Mapping[str, Sequence[Segment]], aggs: Body) -> Body:
    filters = [of_run(run_id), SAMPLE, in_segments([segment for part in parts.values() for segment in part])]
    return {
        "size": 0,
        "track_total_hits": False,
        "query": {"bool": {"filter": filters}},
        "aggs": {name: {"filter": in_segments(part), "aggs": aggs} for name, part in parts.items()},
    }
