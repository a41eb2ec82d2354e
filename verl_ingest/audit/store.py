"""Where documents stand: counted, and named one by one only where a count does not settle it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from elasticsearch import AuthorizationException, Elasticsearch

from verl_ingest.errors import StoreError
from verl_ingest.index.mappings import ALL_PATTERN

PAGE = 10_000  # what a search may return, unless an index is set otherwise
# An answer without some shards would call documents missing; shards that can't match are left out before they search.
_WHOLE = {"allow_partial_search_results": False, "pre_filter_shard_size": 1}


class Store(Protocol):
    """What an audit asks; Elasticsearch is one. Ids are different ones of one run's documents."""

    def refresh(self) -> None:
        """Make searchable what was written so far."""

    def counts(self, run_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return index -> how many of these ids it has, of the two that have most; an index has an id once at most."""

    def places(self, run_id: str, ids: Sequence[str]) -> Mapping[str, list[str]]:
        """Return the indices of each id that stands in any, in order."""

    def remove(self, documents: Sequence[tuple[str, str]]) -> None:
        """Remove documents, each given by index and id."""


class ElasticStore:
    """The daily indices of one cluster (see `Store`). An id is looked for in all that have documents of its run."""

    def __init__(self, client: Elasticsearch) -> None:
        self._client = client
        self._indices: dict[str, list[str]] = {}

    def refresh(self) -> None:
        """Make searchable what was written so far; raises what the client raises where a part does not answer."""
        # Asked first, as the server lets a refresh wait a minute for a shard that is not there.
        self._client.search(index=ALL_PATTERN, size=0, track_total_hits=False, **_WHOLE)
        with suppress(AuthorizationException):  # who may only read waits for the server's own, a second later
            self._client.indices.refresh(index=ALL_PATTERN)
        self._indices = {}

    def counts(self, run_id: str, ids: Sequence[str]) -> Mapping[str, int]:
        """Return index -> how many of these ids it has, of the two that have most; an index has an id once at most."""
        return self._counts(self._among(run_id, ids), most=2)

    def places(self, run_id: str, ids: Sequence[str]) -> Mapping[str, list[str]]:
        """Return the indices of each id that stands in any, in order."""
        found = self._client.search(
            index=ALL_PATTERN,
            query=self._among(run_id, ids),
            size=PAGE,
            source=False,
            sort=["_doc"],
            track_total_hits=True,
            filter_path="hits.total.value,hits.hits._id,hits.hits._index",
            **_WHOLE,
        )["hits"]
        if found["total"]["value"] > PAGE and len(ids) > 1:  # documents of more than one day
            middle = len(ids) // 2
            return {**self.places(run_id, ids[:middle]), **self.places(run_id, ids[middle:])}
        indices: dict[str, list[str]] = {}
        for hit in found.get("hits", ()):
            indices.setdefault(hit["_id"], []).append(hit["_index"])
        return {event_id: sorted(days) for event_id, days in indices.items()}

    def remove(self, documents: Sequence[tuple[str, str]]) -> None:
        """Remove documents, each given by index and id; raises StoreError where the server refuses."""
        if not documents:
            return
        actions = [{"delete": {"_index": index, "_id": event_id}} for index, event_id in documents]
        for item in self._client.bulk(operations=actions, filter_path="items.*.error").get("items", ()):
            reason = item["delete"]["error"].get("reason")
            raise StoreError(f"Elasticsearch does not remove a document that stands in two days' indices: {reason}.")

    def _among(self, run_id: str, ids: Sequence[str]) -> dict[str, Any]:
        """Return the query for ids; an index takes its time to look for them, so those without the run are left out."""
        if run_id not in self._indices:
            self._indices[run_id] = list(self._counts({"term": {"run_id": run_id}}, most=PAGE))
        return {"bool": {"filter": [{"terms": {"_index": self._indices[run_id]}}, {"ids": {"values": ids}}]}}

    def _counts(self, query: dict[str, Any], *, most: int) -> dict[str, int]:
        """Return index -> number of documents, of those indices that have most of them."""
        found = self._client.search(
            index=ALL_PATTERN,
            query=query,
            size=0,
            aggs={"indices": {"terms": {"field": "_index", "size": most}}},
            request_cache=False,
            **_WHOLE,
        )
        buckets = found.get("aggregations", {"indices": {"buckets": []}})["indices"]["buckets"]
        return {bucket["key"]: bucket["doc_count"] for bucket in buckets}
