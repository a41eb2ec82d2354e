"""Several searches in one request, and all pages of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest.errors import StoreError
from verl_ingest.query.bodies import Body


def pages(search: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the buckets of all pages of a composite aggregation; `search` asks for the page after a key."""
    after = None
    while True:
        found = search(after).get("aggregations", {"page": {"buckets": []}})["page"]  # none where no index matches
        yield from found["buckets"]
        after = found.get("after_key")
        if after is None:
            return


def several(client: Elasticsearch, header: Body, asked: Sequence[Body]) -> list[Mapping[str, Any]]:
    """Run several searches in one request; raises StoreError when one of them failed, even in part."""
    header = {**header, "allow_partial_search_results": False}
    found = client.msearch(searches=[part for body in asked for part in (header, body)])["responses"]
    for answer in found:
        if "error" in answer:
            reason = answer["error"].get("reason", answer["error"])
            raise StoreError(f"Elasticsearch could not answer a search: {reason}; look at the server's log.")
    return found
