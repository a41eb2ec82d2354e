"""What the records of a run say step by step: the searches, and what they answer."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.query.bodies import (
    AS_STORED,
    ERROR,
    IS_DATED,
    METRIC,
    MOST,
    WARNING_LEVELS,
    Body,
    in_segments,
    lacks,
    of_run,
    of_stage,
)
from verl_ingest.query.store import Key, Level, MadeOf, Segment, StagePresence

AT = {"field": "@timestamp"}
MOST_STEPS = 65_536  # more buckets than these the server refuses


def levels(run_id: str, segments: Sequence[Segment], keys: Sequence[Key]) -> Body:
    """Return the body that gives each metric's mean, least and greatest value per step.

    Aggregation names are g<group>, steps, and all<i>, weighted<i> and unweighted<i> for the i-th key, since names of
    metrics may hold characters that names of aggregations may not.
    """
    groups: dict[tuple[str | None, bool], Body] = {}
    for number, key in enumerate(keys):
        field = {"field": f"metrics.{key.name}"}
        without = {"unweighted": {"filter": lacks("weight"), "aggs": {}}}
        of_group = groups.setdefault((key.stage, key.ranked), without)
        of_group[f"all{number}"] = {"stats": field}
        of_group[f"weighted{number}"] = {"weighted_avg": {"value": field, "weight": {"field": "weight"}}}
        of_group["unweighted"]["aggs"][f"unweighted{number}"] = {"value_count": field}
    aggs = {
        f"g{number}": {"filter": _group(stage, ranked), "aggs": {"steps": _per_step(segments, of_group)}}
        for number, ((stage, ranked), of_group) in enumerate(groups.items())
    }
    return _over(run_id, segments, aggs)


def read_levels(groups: Mapping[str, Any], keys: Sequence[Key]) -> dict[Key, dict[int, Level]]:
    """Return metric -> step -> level from what `levels` answers; weighted as `context/pooling.py` says."""
    found: dict[Key, dict[int, Level]] = {key: {} for key in keys}
    members_of: dict[tuple[str | None, bool], list[tuple[int, Key]]] = {}
    for number, key in enumerate(keys):
        members_of.setdefault((key.stage, key.ranked), []).append((number, key))
    for group, members in enumerate(members_of.values()):
        for step in groups[f"g{group}"]["steps"]["buckets"]:
            for number, key in members:
                values = step[f"all{number}"]
                if values["count"]:
                    weighted = step[f"weighted{number}"]["value"]  # None where the weights add up to nothing
                    is_weighted = weighted is not None and not step["unweighted"][f"unweighted{number}"]["value"]
                    mean = weighted if is_weighted else values["avg"]
                    found[key][step["key"]] = level(mean, values["min"], values["max"])
    return found


def level(mean: float, low: float, high: float) -> Level:
    """Return a level, its mean to 12 digits: those beyond depend on the order in which the values are added up."""
    return Level(float(f"{mean:.12g}"), low, high)


def presence(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that tells which ranks, hosts and records each stage had."""
    hosts = {"hosts": {"terms": {"field": "host.name", "size": MOST}, "aggs": {"time": {"avg": AT}}}}
    per_stage = {
        "ranks": {"terms": {"field": "rank", "size": MOST}},
        "steps": _per_step(segments, {"dated": {"filter": IS_DATED, "aggs": {"end": {"max": AT}}}, **hosts}),
    }
    stages = {"terms": {"field": "stage", "size": MOST, "missing": ""}, "aggs": per_stage}
    return _over(run_id, segments, {"stages": stages})


def read_presence(aggregations: Mapping[str, Any]) -> dict[str | None, StagePresence]:
    """Return stage -> what it logged from what `presence` answers."""
    return {
        stage["key"] or None: StagePresence(
            ranks=frozenset(bucket["key"] for bucket in stage["ranks"]["buckets"]),
            records={step["key"]: step["doc_count"] for step in stage["steps"]["buckets"]},
            ends={
                step["key"]: int(step["dated"]["end"]["value"])
                for step in stage["steps"]["buckets"]
                if step["dated"]["end"]["value"] is not None
            },
            host_times={
                step["key"]: {host["key"]: host["time"]["value"] for host in step["hosts"]["buckets"]}
                for step in stage["steps"]["buckets"]
            },
        )
        for stage in aggregations["stages"]["buckets"]
    }


def made_of(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that tells by which records a summary of each step would be made."""
    return _over(run_id, segments, {"steps": _per_step(segments, {"writes": {"sum": {"field": "_seq_no"}}})})


def read_made_of(aggregations: Mapping[str, Any]) -> dict[int, MadeOf]:
    """Return step -> the records it has from what `made_of` answers, in order of step."""
    return {
        step["key"]: MadeOf(step["doc_count"], int(step["writes"]["value"]))
        for step in aggregations["steps"]["buckets"]
    }


def metric_records(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that finds the metric records of some steps."""
    return {"query": _metrics_in(run_id, segments), "sort": AS_STORED}


def rank_values(run_id: str, segments: Sequence[Segment], keys: Sequence[Key]) -> Body:
    """Return the body that gives each metric's value per step and rank, under v<i> for the i-th key."""
    stages: dict[str | None, Body] = {}
    for number, key in enumerate(keys):
        stages.setdefault(key.stage, {})[f"v{number}"] = {"avg": {"field": f"metrics.{key.name}"}}
    aggs = {}
    for number, (stage, metrics) in enumerate(stages.items()):
        ranks = {"ranks": {"terms": {"field": "rank", "size": MOST}, "aggs": metrics}}
        aggs[f"g{number}"] = {"filter": _group(stage, ranked=True), "aggs": {"steps": _per_step(segments, ranks)}}
    return _over(run_id, segments, aggs)


def troubled_steps(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that lists the steps with a value that is not finite, an error, or a warning of known trouble."""
    known = [phrase for trouble in troubles.load().values() for phrase in trouble.warns]
    phrases = [{"match_phrase": {"message": phrase}} for phrase in known]
    warning = {"terms": {"log.level": list(WARNING_LEVELS)}}
    warned = {"bool": {"filter": [warning], "should": phrases, "minimum_should_match": 1}}
    trouble = {"bool": {"should": [{"exists": {"field": "nonfinite"}}, ERROR, warned]}}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": {"bool": {"filter": [of_run(run_id), in_segments(segments), trouble]}},
        "aggs": {"steps": _per_step(segments, {})},
    }


def _over(run_id: str, segments: Sequence[Segment], aggs: Body) -> Body:
    return {"size": 0, "track_total_hits": False, "query": _metrics_in(run_id, segments), "aggs": aggs}


def _metrics_in(run_id: str, segments: Sequence[Segment]) -> Body:
    return {"bool": {"filter": [of_run(run_id), METRIC, in_segments(segments)]}}


def _per_step(segments: Sequence[Segment], aggs: Body) -> Body:
    count = sum(segment.last - segment.first + 1 for segment in segments)
    return {"terms": {"field": "step", "size": min(max(count, 1), MOST_STEPS), "order": {"_key": "asc"}}, "aggs": aggs}


def _group(stage: str | None, ranked: bool) -> Body:
    return {"bool": {"filter": [of_stage(stage), {"exists": {"field": "rank"}} if ranked else lacks("rank")]}}
