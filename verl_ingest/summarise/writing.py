"""Store summaries and remove them."""

from collections.abc import Iterable
from typing import Any

import orjson
from elasticsearch import Elasticsearch

from verl_ingest.errors import StoreError
from verl_ingest.index.mappings import RECORDS_PATTERN, RECORDS_PREFIX, STEPS_INDEX, STEPS_PATTERN
from verl_ingest.query.summaries import Summary

PAGE = 5_000


def write(client: Elasticsearch, summaries: Iterable[Summary]) -> None:
    """Store summaries, each in place of what there is of its run, attempt and step; raises StoreError if refused."""
    _bulk(
        client,
        [line for summary in summaries for line in ({"index": {"_id": summary.document_id}}, summary.document())],
    )


def remove(client: Elasticsearch, summaries: Iterable[Summary]) -> None:
    """Remove summaries; raises StoreError where the server refuses."""
    _bulk(client, [{"delete": {"_id": summary.document_id}} for summary in summaries])


def remove_days(client: Elasticsearch) -> int:
    """Remove the summaries of days whose records have no index any more; return how many. Raises as `remove` does.

    Nobody would read them again: they count only beside the records that they were made of.
    """
    by_day = {"date_histogram": {"field": "@timestamp", "calendar_interval": "day", "format": "yyyy.MM.dd"}}
    by_day["date_histogram"]["min_doc_count"] = 1
    found = client.search(index=STEPS_PATTERN, size=0, aggs={"days": by_day}, allow_partial_search_results=False)
    days = found.get("aggregations", {"days": {"buckets": []}})["days"]["buckets"]  # none without an index
    # Asked for after the days: whoever loads an old day meanwhile makes its index first, then its summaries.
    there = client.indices.get_settings(index=RECORDS_PATTERN, name="index.creation_date", expand_wildcards="all")
    return sum(
        _remove_day(client, day["key_as_string"]) for day in days if RECORDS_PREFIX + day["key_as_string"] not in there
    )


def refresh(client: Elasticsearch) -> None:
    """Make what was written and removed so far visible to readers."""
    client.indices.refresh(index=STEPS_PATTERN)


def _remove_day(client: Elasticsearch, day: str) -> int:
    """Remove the summaries of a day page by page: not every server deletes by a query."""
    removed = 0
    of_day = {"range": {"@timestamp": {"gte": day, "lt": f"{day}||+1d", "format": "yyyy.MM.dd"}}}
    while hits := client.search(index=STEPS_PATTERN, query=of_day, size=PAGE, source=False)["hits"]["hits"]:
        _bulk(client, [{"delete": {"_id": hit["_id"]}} for hit in hits])
        refresh(client)
        removed += len(hits)
    return removed


def _bulk(client: Elasticsearch, lines: list[dict[str, Any]]) -> None:
    if not lines:
        return
    body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
    answer = client.bulk(index=STEPS_INDEX, operations=[body], filter_path="items.*.error")
    for item in answer.get("items", ()):
        [result] = item.values()
        raise StoreError(
            f"Elasticsearch refused a step summary: {str(result['error'].get('reason')).rstrip('.')}; "
            "`verl-ingest summarize RUN` writes it once that is mended."
        )
