"""Daily indices on the server: what there is, whose records are in them, delete one."""

from collections.abc import Collection, Mapping

from elasticsearch import ApiError, Elasticsearch, NotFoundError

from verl_ingest.index.client import explain
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.retention import pins
from verl_ingest.retention.due import Index, Verdict, is_daily
from verl_ingest.settings import Settings

_MOST = 65_536  # the server makes no more buckets


def indices(client: Elasticsearch) -> list[Index]:
    """Return the daily indices that are open; what is closed can't be looked into, so it is left alone."""
    made = _made(client, ALL_PATTERN)
    stats = client.indices.stats(index=ALL_PATTERN, metric="docs,store", expand_wildcards="open")["indices"]
    return [
        Index(
            name,
            since,
            stats[name]["primaries"].get("docs", {}).get("count") if name in stats else None,
            stats[name]["total"].get("store", {}).get("size_in_bytes") if name in stats else None,
        )
        for name, since in made.items()
        if is_daily(name)
    ]


def records_of(client: Elasticsearch, run_ids: Collection[str], *, index: str) -> dict[str, dict[str, int]]:
    """Return how many documents of runs each index has: index -> run -> documents; `index` is a name or a pattern.

    Raises what the client raises, also where a part of an index does not answer.
    """
    runs = {"terms": {"field": "run_id", "size": max(len(run_ids), 1)}}
    found = client.search(
        index=index,
        query={"terms": {"run_id": list(run_ids)}},
        size=0,
        aggs={"indices": {"terms": {"field": "_index", "size": _MOST}, "aggs": {"runs": runs}}},
        allow_partial_search_results=False,
    )
    buckets = found.get("aggregations", {"indices": {"buckets": []}})["indices"]["buckets"]  # none without an index
    return {part["key"]: {run["key"]: run["doc_count"] for run in part["runs"]["buckets"]} for part in buckets}


def judge(client: Elasticsearch, index: Index, settings: Settings) -> Verdict:
    """Return whether an index that is old enough may go, by the pins as they are now."""
    pinned = [pin.run_id for pin in pins.read(client)]
    if not pinned:
        return Verdict(index, "due")
    try:
        found = records_of(client, pinned, index=index.name)
    except NotFoundError:
        return Verdict(index, "gone")
    except ApiError as error:
        return Verdict(index, "failed", str(explain(error, settings)))
    runs = sorted(found.get(index.name, {}))
    return Verdict(index, "kept", f"pinned by {', '.join(runs)}") if runs else Verdict(index, "due")


def delete(client: Elasticsearch, index: Index, settings: Settings) -> Verdict:
    """Delete an index, if it still is the one that was looked at, and no run in it has been pinned meanwhile."""
    made: Mapping[str, int] = _made(client, index.name)
    if index.name not in made:
        return Verdict(index, "gone")
    if made[index.name] != index.made:
        return Verdict(index, "kept", "made anew meanwhile, by late lines")
    verdict = judge(client, index, settings)
    if verdict.word != "due":
        return verdict
    try:
        client.indices.delete(index=index.name)
    except NotFoundError:
        return Verdict(index, "gone")
    except ApiError as error:
        return Verdict(index, "failed", str(explain(error, settings)))
    return Verdict(index, "deleted")


def _made(client: Elasticsearch, index: str) -> dict[str, int]:
    """Return when indices were made."""
    found = client.indices.get_settings(
        index=index, name="index.creation_date", flat_settings=True, ignore_unavailable=True, expand_wildcards="open"
    )
    return {name: int(item["settings"]["index.creation_date"]) for name, item in found.items()}
