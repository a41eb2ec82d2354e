"""Store summaries and remove them."""

from collections.abc import Iterable
from typing import Any

import orjson
from elasticsearch import Elasticsearch

from verl_ingest.errors import StoreError
from verl_ingest.index.mappings import STEPS_INDEX, STEPS_PATTERN
from verl_ingest.query.summaries import Summary


def write(client: Elasticsearch, summaries: Iterable[Summary]) -> None:
    """Store summaries, each in place of what there is of its run, attempt and step; raises StoreError if refused."""
    _bulk(
        client,
        [line for summary in summaries for line in ({"index": {"_id": summary.document_id}}, summary.document())],
    )


def remove(client: Elasticsearch, summaries: Iterable[Summary]) -> None:
    """Remove summaries; raises StoreError where the server refuses."""
    _bulk(client, [{"delete": {"_id": summary.document_id}} for summary in summaries])


def refresh(client: Elasticsearch) -> None:
    """Make what was written and removed so far visible to readers."""
    client.indices.refresh(index=STEPS_PATTERN)


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
