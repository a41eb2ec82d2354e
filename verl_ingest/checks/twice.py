"""Lines that cost more than once: written by several agents, or standing in two days' indices. By samples."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest.audit.store import ElasticStore
from verl_ingest.checks.check import Check
from verl_ingest.checks.day import Day, within
from verl_ingest.context.words import counted
from verl_ingest.index.mappings import RECORDS_PATTERN
from verl_ingest.query import bodies

RUNS = 3
SAMPLE = 1_000
HOUR_MS = 3_600_000  # of more records than that, each would have to be given its chance
AGAIN = "written twice"


def again(day: Day, server: Elasticsearch) -> Iterator[Check]:
    """Look how often records of the newest runs' last hour were written: the server counts that in their versions."""
    versions = {}
    for run in day.runs[:RUNS]:
        last_hour = within(max(day.since, round(run.last) - HOUR_MS), round(run.last))
        hits = _by_chance(server, {"bool": {"filter": [bodies.of_run(run.run_id), last_hour]}}, version=True)
        versions[run.run_id] = [hit["_version"] for hit in hits]
    yield judge_again(versions)


def judge_again(versions: Mapping[str, Sequence[int]]) -> Check:
    """Return the verdict on how often some records of each run were written.

    A restart or an outage lets an agent send a few again; where most were, it is by design of the paths.
    """
    often = [
        f"{run_id} {statistics.median(found):g} times"
        for run_id, found in versions.items()
        if 2 * sum(version > 1 for version in found) > len(found)
    ]
    looked_at = counted(sum(map(len, versions.values())), "record")
    if not often:
        more = sum(version > 1 for found in versions.values() for version in found)
        return Check(AGAIN, "fine", f"{more:,} of {looked_at} looked at were written more than once.")
    return Check(
        AGAIN,
        "watch",
        f"Of {looked_at} looked at, most were written more than once: {', '.join(often)}. That costs time, no record.",
        "if several agents tail the same shared files, let one node's do it (`paths`, docs/agent.md)",
    )


def in_two_days(day: Day, server: Elasticsearch) -> Iterator[Check]:
    """Look whether lines without a time of their own, which go to the day they are read on, stand in two days."""
    undated = {"bool": {"filter": [within(day.since, day.until), {"terms": {"time_source": ["read", "estimated"]}}]}}
    hits = _by_chance(server, undated, source=["run_id"])
    by_run: dict[str, set[str]] = {}
    for hit in hits:
        by_run.setdefault(hit["_source"]["run_id"], set()).add(hit["_id"])
    store = ElasticStore(server)
    twice = {
        run: sum(len(indices) > 1 for indices in store.places(run, list(ids)).values()) for run, ids in by_run.items()
    }
    yield judge_in_two_days({run: count for run, count in twice.items() if count}, sum(map(len, by_run.values())))


def judge_in_two_days(twice: dict[str, int], looked_at: int) -> Check:
    """Return the verdict on how many of some lines without a time stand in two days, by run."""
    of = f"{counted(looked_at, 'line')} without a time looked at"
    if not twice:
        return Check("in two days", "fine", f"None of {of}.")
    found = f"{sum(twice.values()):,} of {of} stand in two days' indices ({', '.join(sorted(twice))})."
    remedy = "`verl-ingest audit PATH --repair` removes the later ones; searches already show each once"
    return Check("in two days", "watch", found, remedy)


def _by_chance(server: Elasticsearch, query: Mapping[str, Any], *, source: Any = False, **more: Any) -> list[Any]:
    """Return some hits of a query, each with the same chance."""
    by_chance = {"function_score": {"query": query, "random_score": {}}}
    found = server.search(
        index=RECORDS_PATTERN,
        size=SAMPLE,
        query=by_chance,
        source=source,
        track_total_hits=False,
        allow_partial_search_results=False,
        **more,
    )
    return found["hits"]["hits"]
