"""One search each, as plain dicts; elastic.py runs them, history.py and beside.py have more.

Nothing here needs scripts or pipeline aggregations.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from verl_ingest.query.store import Condition, Launch, Lines, Segment, Stream
from verl_ingest.query.times import iso

Body = dict[str, Any]

# More buckets than any search here has steps, ranks or hosts; the server's own limit is 65,536 in all.
MOST = 10_000
# Documents of one step lie side by side on disk: read in this order they come some twenty times as fast as by time.
AS_STORED = ["_shard_doc"]
ERROR_LEVELS = ("error", "critical", "fatal")
WARNING_LEVELS = ("warning", "warn")
ERROR = {"bool": {"should": [{"exists": {"field": "error.type"}}, {"terms": {"log.level": list(ERROR_LEVELS)}}]}}
# What says its step itself: a line of a stream after the last step belongs to a step that never came.
SAYS_STEP = {
    "bool": {"filter": [{"terms": {"kind": ["metric", "sample"]}}, {"term": {"step_source": "record"}}]},
}
METRIC = {"term": {"kind": "metric"}}
SAMPLE = {"term": {"kind": "sample"}}
# Where the line has a time of its own: any other time is that of reading, or the file's.
DATED = ("record", "line")
IS_DATED = {"terms": {"time_source": list(DATED)}}
# What is read of the events that say how a run was set up; a whole configuration has a thousand entries.
SETUP = (
    *("extra.world_size", "extra.url"),
    *(f"extra.config.trainer.{name}" for name in ("total_training_steps", "default_local_dir")),
)
RUN_IDS = [{"run_id": {"terms": {"field": "run_id"}}}]
LINE_KINDS = {"terms": {"kind": ["log", "event", "unparsed"]}}


def of_run(run_id: str) -> Body:
    """Return the filter for one run."""
    return {"term": {"run_id": run_id}}


def days(run_id: str) -> Body:
    """Return the body that finds the indices a run is in."""
    return {
        "size": 0,
        "track_total_hits": False,
        "query": of_run(run_id),
        "aggs": {"days": {"terms": {"field": "_index", "size": MOST}}},
    }


def run_ids(prefix: str, after: Mapping[str, Any] | None) -> Body:
    """Return the body of one page of run names."""
    query = {"prefix": {"run_id": prefix}} if prefix else {"match_all": {}}
    return {"size": 0, "query": query, "aggs": {"page": _composite(RUN_IDS, after, {})}}


def runs(after: Mapping[str, Any] | None, run_id: str | None = None) -> Body:
    """Return the body of one page of runs (or just one), each with its times, newest step and newest error."""
    each = {
        **_span(),
        "dated": {"filter": IS_DATED, "aggs": _span()},
        "read": {"filter": {"term": {"time_source": "read"}}, "aggs": _span()},
        "error": {"filter": ERROR, "aggs": {"newest": _newest()}},
        # metrics before samples: a copied dump file, which has no times, may look newer than all there is
        "step": {"filter": SAYS_STEP, "aggs": {"newest": _newest({"kind": "asc"})}},
    }
    query = {"match_all": {}} if run_id is None else of_run(run_id)
    return {"size": 0, "track_total_hits": False, "query": query, "aggs": {"page": _composite(RUN_IDS, after, each)}}


def step_ends(run_id: str, step: int, size: int) -> Body:
    """Return the body that tells when each of `size` steps up to `step` ended."""
    end = {"end": {"max": {"field": "@timestamp"}}}
    window = _range("step", gt=step - size, lte=step)
    steps = {"terms": {"field": "step", "size": size, "order": {"_key": "asc"}}, "aggs": end}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(of_run(run_id), METRIC, SAYS_STEP, *window),
        "aggs": {"steps": steps, "dated": {"filter": IS_DATED, "aggs": {"steps": steps}}},
    }


def setups(run_ids: Sequence[str]) -> Body:
    """Return the body that finds the lines that say how runs were set up, without most of a configuration."""
    said = [{"terms": {"event": ["config", "tracker"]}}, {"match_phrase": {"message": "Total steps"}}]
    return {
        "query": _all({"terms": {"run_id": list(run_ids)}}, _any(said)),
        "sort": [{"@timestamp": "asc"}],
        "_source": ["run_id", "@timestamp", "event", "message", *SETUP],
    }


def newest_record(filters: Sequence[Body] = ()) -> Body:
    """Return the body that finds the newest record."""
    return {
        "size": 1,
        "track_total_hits": False,
        "query": _all(*filters),
        "sort": [{"@timestamp": "desc"}],
        "_source": ["run_id", "step", "@timestamp"],
    }


def steps(run_id: str, *, low: int | None, high: int | None, size: int, newest_first: bool) -> Body:
    """Return the body that lists steps from one end of low..high."""
    order = {"_key": "desc" if newest_first else "asc"}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(of_run(run_id), _any([SAYS_STEP, ERROR]), *_range("step", gte=low, lte=high)),
        "aggs": {"steps": {"terms": {"field": "step", "size": size, "order": order}}},
    }


def records(run_id: str, step: int) -> Body:
    """Return the body that finds all documents of a step but its samples."""
    return {"query": _all(of_run(run_id), {"term": {"step": step}}, none=[SAMPLE]), "sort": AS_STORED}


def launches(run_id: str, stream: Stream, after: Mapping[str, Any] | None) -> Body:
    """Return the body of one page of processes that logged one stream."""
    sources = [
        {name: {"terms": {"field": field, "missing_bucket": True}}}
        for name, field in (("attempt", "attempt"), ("host", "host.name"), ("pid", "process.pid"))
    ]
    aggs = {**_span(), "first_step": {"min": {"field": "step"}}, "last_step": {"max": {"field": "step"}}}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _stream(run_id, stream),
        "aggs": {"page": _composite(sources, after, aggs)},
    }


def processes(run_id: str, *, pids: Collection[int] | None, rank: int | None, after: Mapping[str, Any] | None) -> Body:
    """Return the body of one page of the processes that records with a rank name."""
    sources = [
        {"host": {"terms": {"field": "host.name", "missing_bucket": True}}},
        {"pid": {"terms": {"field": "process.pid"}}},
        {"rank": {"terms": {"field": "rank"}}},
    ]
    wanted = [{"terms": {"process.pid": sorted(pids)}}] if pids is not None else []
    wanted += [{"term": {"rank": rank}}] if rank is not None else []
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(of_run(run_id), {"exists": {"field": "rank"}}, *wanted),
        "aggs": {"page": _composite(sources, after, _span())},
    }


def climb(run_id: str, stream: Stream, launch: Launch) -> Body:
    """Return the body that gives the least and greatest step of one process in each of many short times."""
    interval = {"fixed_interval": f"{(launch.last - launch.first) // MOST + 1}ms", "min_doc_count": 1}
    ends = {"low": {"min": {"field": "step"}}, "high": {"max": {"field": "step"}}}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(_stream(run_id, stream), *_process(launch)),
        "aggs": {"times": {"date_histogram": {"field": "@timestamp", **interval}, "aggs": ends}},
    }


def track(run_id: str, stream: Stream, launch: Launch | None) -> Body:
    """Return the body that walks the steps of one stream in order of time, without reading a document."""
    return {
        "query": _all(_stream(run_id, stream), *(_process(launch) if launch is not None else [])),
        "sort": [{"@timestamp": "asc"}],
        "stored_fields": "_none_",
        "docvalue_fields": ["step"],
    }


def first_after(run_id: str, since: int, until: int, step: int, *, dated: bool) -> Body:
    """Return the body that finds the first metric record in since..until whose step is at most `step`."""
    window = [*_range("@timestamp", gt=iso(since), lte=iso(until)), *([IS_DATED] if dated else [])]
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(of_run(run_id), METRIC, *_range("step", lte=step), *window),
        "aggs": {"first": {"min": {"field": "@timestamp"}}},
    }


def lines(run_id: str, wanted: Lines) -> Body:
    """Return the body that finds log lines; with `text` or `rank` a superset, which the reader must look through."""
    filters = _between(wanted.since, wanted.until)
    of_steps = _range("step", gte=wanted.steps[0], lte=wanted.steps[1]) if wanted.steps is not None else []
    around = _between(*wanted.around) if wanted.around is not None else []
    filters += [_any([*of_steps, *around])] if of_steps else []
    if wanted.rank is not None:
        unranked = _any([{"terms": {"process.pid": sorted(wanted.pids)}}, {"exists": {"field": "error.type"}}])
        filters.append(_any([{"term": {"rank": wanted.rank}}, _all(unranked, lacks("rank"))]))
    if wanted.levels is not None:
        traceback = [{"exists": {"field": "error.type"}}] if set(wanted.levels) & set(ERROR_LEVELS) else []
        filters.append({"bool": {"should": [{"terms": {"log.level": list(wanted.levels)}}, *traceback]}})
    if wanted.event is not None:
        filters.append({"term": {"event": wanted.event}})
    if wanted.text is not None:
        filters += [_holds(word) for word in re.findall(r"[A-Za-z]{3,}", wanted.text)]
    return {"query": _all(of_run(run_id), LINE_KINDS, *filters), "sort": AS_STORED}


def has_value(condition: Condition) -> Body:
    """Return the filter for documents that have what a condition speaks of."""
    return _any({"exists": {"field": field}} for field in _fields(condition))


def share(condition: Condition, *, since: int, until: int, run_id: str | None) -> Body:
    """Return the body that counts values in a window, and those that fulfil the condition."""
    filters = [*_range("@timestamp", gte=iso(since), lte=iso(until)), *([of_run(run_id)] if run_id is not None else [])]
    aggs: Body = {
        "n": {"filter": has_value(condition)},
        "hits": {"filter": _any(_compare(field, condition.operator, condition.number) for field in _fields(condition))},
    }
    if condition.names:
        aggs["nonfinite"] = {"filter": {"terms": {"nonfinite": list(condition.names)}}}
    else:
        aggs["n"]["aggs"] = {"parts": {"terms": {"field": "sample.split"}}}
    return {"size": 0, "track_total_hits": False, "query": _all(*filters), "aggs": aggs}


def values(run_id: str, step: int, since: int, names: Sequence[str]) -> Body:
    """Return the body that gives the weighted mean of each metric in one step, under w<i> for the i-th name."""
    weight = {"field": "weight", "missing": 1}
    return {
        "size": 0,
        "track_total_hits": False,
        "query": _all(of_run(run_id), METRIC, {"term": {"step": step}}, *_range("@timestamp", gte=iso(since))),
        "aggs": {
            f"w{number}": {"weighted_avg": {"value": {"field": f"metrics.{name}"}, "weight": weight}}
            for number, name in enumerate(names)
        },
    }


def _fields(condition: Condition) -> list[str]:
    return [f"metrics.{name}" for name in condition.names] or ["sample.score"]


def _compare(field: str, operator: str, number: float) -> Body:
    """Return the filter for `field OP number`; metrics have no index, so == is a range of one value."""
    ranges = {"<": {"lt": number}, "<=": {"lte": number}, ">": {"gt": number}, ">=": {"gte": number}}
    if operator in ranges:
        return {"range": {field: ranges[operator]}}
    equal = {"range": {field: {"gte": number, "lte": number}}}
    return equal if operator == "==" else _all({"exists": {"field": field}}, none=[equal])


def _newest(*first: Body) -> Body:
    hit = {"size": 1, "sort": [*first, {"@timestamp": "desc"}], "_source": ["step", "@timestamp", "time_source"]}
    return {"top_hits": hit}


def _span() -> Body:
    return {"first": {"min": {"field": "@timestamp"}}, "last": {"max": {"field": "@timestamp"}}}


def _composite(sources: Sequence[Body], after: Mapping[str, Any] | None, aggs: Body) -> Body:
    page = {"size": MOST, "sources": sources} | ({"after": dict(after)} if after else {})
    return {"composite": page, "aggs": aggs}


def _stream(run_id: str, stream: Stream) -> Body:
    own = {"term": {"rank": stream.rank}} if stream.rank is not None else lacks("rank")
    dated = [IS_DATED] if stream.dated else []
    return _all(of_run(run_id), METRIC, SAYS_STEP, own, of_stage(stream.stage), *dated)


def _process(launch: Launch) -> list[Body]:
    host = {"term": {"host.name": launch.host}} if launch.host is not None else lacks("host.name")
    return [host, {"term": {"process.pid": launch.pid}}]


def of_stage(stage: str | None) -> Body:
    """Return the filter for records of a stage, or of none."""
    return {"term": {"stage": stage}} if stage else lacks("stage")


def lacks(field: str) -> Body:
    """Return the filter for documents without a field."""
    return {"bool": {"must_not": [{"exists": {"field": field}}]}}


def in_segments(segments: Iterable[Segment]) -> Body:
    """Return the filter for what the segments' attempts logged."""
    return _any(
        _all(
            {"range": {"step": {"gte": segment.first, "lte": segment.last}}},
            *_range(
                "@timestamp",
                gte=iso(segment.since) if segment.since is not None else None,
                lt=iso(segment.until) if segment.until is not None else None,
            ),
        )
        for segment in segments
    )


def _holds(letters: str) -> Body:
    """Match lines with a word that holds these letters: the analyser never cuts inside a run of ASCII letters."""
    texts = [
        {"wildcard": {field: {"value": f"*{letters}*", "case_insensitive": True}}}
        for field in ("message", "error.message", "error.stack_trace")
    ]
    return _any([*texts, {"exists": {"field": "event"}}])


def _between(since: int | None, until: int | None) -> list[Body]:
    bounds = {"gte": since, "lte": until}
    return _range("@timestamp", **{name: iso(time) for name, time in bounds.items() if time is not None})


def _range(field: str, **bounds: Any) -> list[Body]:
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return [{"range": {field: given}}] if given else []


def _all(*filters: Body, none: Sequence[Body] = ()) -> Body:
    return {"bool": {"filter": list(filters)} | ({"must_not": list(none)} if none else {})}


def _any(filters: Iterable[Body]) -> Body:
    return {"bool": {"should": list(filters), "minimum_should_match": 1}}
