"""The records of the last day in one search: how many, of which runs and hosts, and what is odd about them.

Pure but for `read`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest.index.mappings import RECORDS_PATTERN
from verl_ingest.settings import OWN_RULES, Settings

DAY_MS = 86_400_000
AHEAD_MS = 60_000  # clocks may differ by as much
MOST = 5_000_000  # records that are looked at: a few seconds' work
RUNS, HOSTS, RANKS, FIELDS = 20, 1_000, 8_192, 5
# Flags that cost something; others only say what was repaired.
TELLING = (
    "zone_assumed",
    "time_invalid",
    "truncated",
    "step_invalid",
    "rank_invalid",
    "run_id_cut",
    "normalizer_error",
    "stack_endless",
)


@dataclass(frozen=True)
class OfRun:
    """What the day has of a run; `first` and `last` are the times of its oldest and newest record, ms since 1970.

    `hosts` are those of each host's newest record, `ranks` of each rank's newest metrics. The rest are records:
    `unparsed` of all, `nonfinite` of those with metrics, by metric the most frequent ones too.
    """

    run_id: str
    records: int
    unparsed: int
    metrics: int
    nonfinite: int
    nonfinite_names: Mapping[str, int]
    first: float
    last: float
    hosts: Mapping[str, float]
    ranks: Mapping[int, float]


@dataclass(frozen=True)
class Day:
    """The records from `since` up to `until`, the time of the newest one, in ms since 1970.

    `ahead`: how many are later than any clock should be. `runs`: the one with the newest record first.
    """

    since: int
    until: int
    ahead: int
    records: int
    ignored: int
    ignored_names: Mapping[str, int]
    flags: Mapping[str, int]
    dropped: Mapping[str, int]
    runs: Sequence[OfRun]


def read(client: Elasticsearch, settings: Settings, *, now: int) -> Day | None:
    """Return the day up to the newest record, None where there is none; raises what the client raises."""
    until, ahead = _newest(client, now + AHEAD_MS)
    if until is None:
        return None
    day = within(until - DAY_MS, until)
    records = _count(client, day)
    since = until - round(DAY_MS * min(MOST / records, 1))
    rules = [*OWN_RULES, *(rule.name for rule in settings.drop)]
    found = client.search(index=RECORDS_PATTERN, body=body(since, until, rules), allow_partial_search_results=False)
    return _day(found, rules, since=since, until=until, ahead=ahead)


def within(since: int, until: int) -> dict[str, Any]:
    """Return the query for the times from `since` up to `until`, ms since 1970."""
    return {"range": {"@timestamp": {"gte": since, "lte": until, "format": "epoch_millis"}}}


def body(since: int, until: int, rules: Sequence[str]) -> dict[str, Any]:
    """Return the one search; `rules` are the names of those that drop lines."""
    ignored = {"field": "_ignored", "size": FIELDS}
    telling = {"field": "flags", "include": f"({'|'.join(TELLING)})(:.*)?", "size": HOSTS}
    nonfinite = {"terms": {"field": "nonfinite", "size": FIELDS}}
    runs = {
        "first": {"min": {"field": "@timestamp"}},
        "last": _LAST,
        "unparsed": _counted({"term": {"kind": "unparsed"}}),
        "metrics": _counted({"term": {"kind": "metric"}}, ranks=_last_of("rank", RANKS)),
        "nonfinite": _counted({"exists": {"field": "nonfinite"}}, names=nonfinite),
        "hosts": _last_of("host.name", HOSTS),
    }
    return {
        "size": 0,
        "track_total_hits": True,
        "query": within(since, until),
        "aggs": {
            "ignored": _counted({"exists": {"field": "_ignored"}}, names={"terms": ignored}),
            "flags": {"terms": telling},
            "dropped": _counted(
                {"term": {"event": "dropped"}},
                **{f"of{number}": {"sum": {"field": f"metrics.{rule}"}} for number, rule in enumerate(rules)},
            ),
            "runs": {"terms": {"field": "run_id", "size": RUNS, "order": {"last": "desc"}}, "aggs": runs},
        },
    }


def _newest(client: Elasticsearch, latest: int) -> tuple[int | None, int]:
    """Return the time of the newest record up to `latest`, and how many are later; both are read without a scan."""
    hits = client.search(
        index=RECORDS_PATTERN,
        size=1,
        query=within(0, latest),
        sort=[{"@timestamp": {"order": "desc", "format": "epoch_millis"}}],
        source=False,
        track_total_hits=False,
        allow_partial_search_results=False,
    )["hits"]["hits"]
    ahead = {"range": {"@timestamp": {"gt": latest, "format": "epoch_millis"}}}
    return round(float(hits[0]["sort"][0])) if hits else None, _count(client, ahead)


def _count(client: Elasticsearch, query: Mapping[str, Any]) -> int:
    """Count all records of a query; the request of that name leaves out what does not answer."""
    found = client.search(
        index=RECORDS_PATTERN, query=query, size=0, track_total_hits=True, allow_partial_search_results=False
    )
    return found["hits"]["total"]["value"]


def _day(found: Mapping[str, Any], rules: Sequence[str], *, since: int, until: int, ahead: int) -> Day:
    counts = found["aggregations"]
    flags: Counter[str] = Counter()
    for bucket in counts["flags"]["buckets"]:
        flags[bucket["key"].partition(":")[0]] += bucket["doc_count"]
    dropped = {rule: round(counts["dropped"][f"of{number}"]["value"]) for number, rule in enumerate(rules)}
    return Day(
        since=since,
        until=until,
        ahead=ahead,
        records=found["hits"]["total"]["value"],
        ignored=counts["ignored"]["doc_count"],
        ignored_names=_by_name(counts["ignored"]["names"]),
        flags=flags,
        dropped={rule: lines for rule, lines in dropped.items() if lines},
        runs=[
            OfRun(
                run_id=run["key"],
                records=run["doc_count"],
                unparsed=run["unparsed"]["doc_count"],
                metrics=run["metrics"]["doc_count"],
                nonfinite=run["nonfinite"]["doc_count"],
                nonfinite_names=_by_name(run["nonfinite"]["names"]),
                first=run["first"]["value"],
                last=run["last"]["value"],
                hosts=_times(run["hosts"]),
                ranks=_times(run["metrics"]["ranks"]),
            )
            for run in counts["runs"]["buckets"]
        ],
    )


def _by_name(terms: Mapping[str, Any]) -> dict[str, int]:
    return {bucket["key"]: bucket["doc_count"] for bucket in terms["buckets"]}


def _times(terms: Mapping[str, Any]) -> dict[Any, float]:
    return {bucket["key"]: bucket["last"]["value"] for bucket in terms["buckets"]}


def _last_of(field: str, size: int) -> dict[str, Any]:
    return {"terms": {"field": field, "size": size}, "aggs": {"last": _LAST}}


def _counted(query: Mapping[str, Any], **aggs: Any) -> dict[str, Any]:
    return {"filter": query, **({"aggs": aggs} if aggs else {})}


_LAST = {"max": {"field": "@timestamp"}}
