"""How old the newest records in Elasticsearch are, by run and host."""

from collections.abc import Sequence

from elasticsearch import Elasticsearch

from verl_ingest.index.mappings import RECORDS_PATTERN
from verl_ingest.lag.facts import Newest

RUNS = 20
_HOSTS = 1_000


def read(client: Elasticsearch, run_ids: Sequence[str], *, now: float) -> list[Newest]:
    """Return the newest record of each run and host, the oldest first; `now` is in seconds since 1970.

    Raises what the client raises.
    """
    hosts = {"terms": {"field": "host.name", "missing": "", "size": _HOSTS}, "aggs": {"at": _LAST}}
    runs = {"terms": {"field": "run_id", "size": RUNS}, "aggs": {"hosts": hosts}}
    found = client.search(
        index=RECORDS_PATTERN,
        query={"terms": {"run_id": run_ids}},
        size=0,
        aggs={"runs": runs},
        allow_partial_search_results=False,
    )
    buckets = found.get("aggregations", {"runs": {"buckets": []}})["runs"]["buckets"]
    newest = [
        Newest(run["key"], host["key"], max(now - host["at"]["value"] / 1000, 0))
        for run in buckets
        for host in run["hosts"]["buckets"]
    ]
    return sorted(newest, key=lambda each: -each.age_s)


_LAST = {"max": {"field": "@timestamp"}}
