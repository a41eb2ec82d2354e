"""Lines that cost more than once: written by several agents, or standing in two days' indices. By samples."""

import statistics
from collections.abc import Iterator, Sequence

from elasticsearch import Elasticsearch

from verl_ingest.audit.store import ElasticStore
from verl_ingest.checks.check import Check
from verl_ingest.checks.day import Day, within
from verl_ingest.context.words import counted
from verl_ingest.index.mappings import RECORDS_PATTERN

SAMPLE = 1_000
HOUR_MS = 3_600_000  # of more records than that, each would have to be given its chance
AGAIN = "written twice"


def again(day: Day, server: Elasticsearch) -> Iterator[Check]:
    """Look how often records of the last hour were written: the server counts that in each document's version."""
    since = max(day.since, day.until - HOUR_MS)
    hits = server.search(
        index=RECORDS_PATTERN,
        size=SAMPLE,
        version=True,
        source=False,
        query={"function_score": {"query": within(since, day.until), "random_score": {}}},
        track_total_hits=False,
    )["hits"]["hits"]
    yield judge_again([hit["_version"] for hit in hits])


def judge_again(versions: Sequence[int]) -> Check:
    """Return the verdict on how often each of some records was written.

    A restart or an outage lets an agent send a few again; where most were, it is by design of the paths.
    """
    more = sum(version > 1 for version in versions)
    found = f"{more:,} of {counted(len(versions), 'record')} looked at were written more than once"
    if more < len(versions) / 2:
        return Check(AGAIN, "fine", f"{found}.")
    times = statistics.median(versions)
    return Check(
        AGAIN,
        "watch",
        f"{found}, half of all {times:g} times or more. That costs time, no record.",
        "if several agents tail the same shared files, let one node's do it (`paths`, docs/agent.md)",
    )


def in_two_days(day: Day, server: Elasticsearch) -> Iterator[Check]:
    """Look whether lines without a time of their own, which go to the day they are read on, stand in two days."""
    undated = {"bool": {"filter": [within(day.since, day.until), {"terms": {"time_source": ["read", "estimated"]}}]}}
    hits = server.search(
        index=RECORDS_PATTERN,
        size=SAMPLE,
        source=["run_id"],
        query={"function_score": {"query": undated, "random_score": {}}},
        track_total_hits=False,
    )["hits"]["hits"]
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
