"""What Elasticsearch has of each host, of the last day: records, flagged ones, the newest's age, missing ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest.index.mappings import RECORDS_PATTERN

# Ranks of one step write some time apart, so one step behind the run's newest is not yet missing.
BEHIND = 1

NOT_NAMED = "not named"  # the host of what names none, such as the lines of consoles; no host has a blank in its name

_HOSTS, _RUNS, _RANKS = 1_000, 3, 4_096
_DAY_MS = 86_400_000
# A clock may be ahead; but a run of a wrong year must not stand for the newest.
_AHEAD_MS = 3_600_000


@dataclass(frozen=True)
class Arrivals:
    """What came of a host, or NOT_NAMED: `age_s` seconds ago its newest record was made; `missing` are ranks by run."""

    host: str
    records: int
    flagged: int
    age_s: float
    missing: Mapping[str, Sequence[int]]


def read(client: Elasticsearch, *, now: float) -> list[Arrivals]:
    """Return what came of each host in the day before `now` (seconds since 1970), by name.

    Missing are the ranks of the three newest runs whose newest step is more than BEHIND behind their run's. Raises what
    the client raises.
    """
    found = client.search(index=RECORDS_PATTERN, allow_partial_search_results=False, **body(now=now))
    return judge(found.get("aggregations", {}), now=now)


def body(*, now: float) -> dict[str, Any]:
    """Return the search of `read`."""
    now_ms = round(now * 1000)
    bounds = {"gt": f"{now_ms - _DAY_MS}", "lte": f"{now_ms + _AHEAD_MS}", "format": "epoch_millis"}
    last_day = {"range": {"@timestamp": bounds}}
    by_rank = {"terms": {"field": "rank", "size": _RANKS}, "aggs": {"step": {"max": {"field": "step"}}}}
    hosts = {"field": "host.name", "missing": NOT_NAMED, "size": _HOSTS}
    ranks = {"by_host": {"terms": hosts, "aggs": {"by_rank": by_rank}}}
    return {
        "query": {"bool": {"filter": [last_day]}},
        "size": 0,
        "aggs": {
            "hosts": {
                "terms": hosts,
                "aggs": {"newest": _NEWEST, "flagged": {"filter": {"exists": {"field": "flags"}}}},
            },
            "metrics": {
                "filter": {"term": {"kind": "metric"}},
                "aggs": {
                    "runs": {
                        "terms": {"field": "run_id", "size": _RUNS, "order": {"newest": "desc"}},
                        "aggs": {"newest": _NEWEST, **ranks},
                    }
                },
            },
        },
    }


def judge(aggregations: Mapping[str, Any], *, now: float) -> list[Arrivals]:
    """Return what the answer to `body` says."""
    missing: dict[str, dict[str, list[int]]] = {}
    for run in aggregations["metrics"]["runs"]["buckets"] if aggregations else []:
        for host, rank in _missing(run["by_host"]["buckets"]):
            missing.setdefault(host, {}).setdefault(run["key"], []).append(rank)
    return sorted(
        (
            Arrivals(
                host=host["key"],
                records=host["doc_count"],
                flagged=host["flagged"]["doc_count"],
                age_s=max(now - host["newest"]["value"] / 1000, 0),
                missing=missing.get(host["key"], {}),
            )
            for host in (aggregations["hosts"]["buckets"] if aggregations else [])
        ),
        key=lambda arrivals: arrivals.host,
    )


def _missing(hosts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return host and number of a run's ranks that are behind; a rank that moved is at its newest host."""
    newest: dict[int, tuple[float, str]] = {}
    for host in hosts:
        for rank in host["by_rank"]["buckets"]:
            step = rank["step"]["value"]
            if step is not None:
                newest[rank["key"]] = max(newest.get(rank["key"], (0, "")), (step, host["key"]))
    last = max((step for step, _ in newest.values()), default=0)
    return [(host, rank) for rank, (step, host) in sorted(newest.items()) if step < last - BEHIND]


_NEWEST = {"max": {"field": "@timestamp"}}
