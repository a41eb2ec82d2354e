"""`_bulk` requests: sent from a few threads, sent again where the server is busy, every item's answer looked at."""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from elastic_transport import ConnectionError as TransportFailure
from elastic_transport import ConnectionTimeout
from elasticsearch import ApiError, Elasticsearch

from verl_ingest.errors import StoreError
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.load.patience import PATIENCE_S, Notice, Patience
from verl_ingest.normalise.lua import Block, Undated

SENDERS = 3
WAITING = 2 * SENDERS  # requests in memory at once
BUSY = (429, 502, 503, 504)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 15.0
_LOOKUP = 5_000  # ids a search, below max_result_window
_DISK_FULL = (
    "The disk of Elasticsearch is too full, so it locked its indices against writing; delete old indices or add space, "
    "then run the same load again: what is written stays."
)
# What a reason says of one document only: where in it, its id, the value.
_OF_ONE = re.compile(r"^\[\d+:\d+\] | in document with id '[^']*'|\. Preview of field's value: .*", re.DOTALL)
# Of an answer, what is looked at; the whole is some 200 bytes an item.
FILTER = "errors,items.*.status,items.*.error"
_TOO_BUSY = (
    f"Elasticsearch was too busy for {PATIENCE_S} s (HTTP 429); run the same load again later: what is written stays."
)


@dataclass
class Shipped:
    """What the server said: documents that are new, that were there already, and refused ones by reason."""

    created: int = 0
    existing: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Shipper:
    """Sends bodies in the background; `close` waits for all and raises what went wrong."""

    def __init__(self, client: Elasticsearch, *, notice: Notice = lambda sentence: None) -> None:
        """Take the client, and what is told when the server goes away and when it is back."""
        self._client = client
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="bulk")
        self._free = threading.BoundedSemaphore(WAITING)
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._patience = Patience(notice)
        self.shipped = Shipped()

    def send(self, block: Block) -> None:
        """Queue a block's documents; waits while too many are under way. Raises the first failure of any sender."""
        for part in filter(None, (block.dated, block.undated)):
            self._free.acquire()
            if self._failure:
                self._free.release()
                raise self._failure
            self._pool.submit(self._work, part).add_done_callback(self._done)

    def close(self) -> Shipped:
        """Wait for all that was queued; raise the first failure, or return what the server said."""
        self._pool.shutdown(wait=True)
        if self._failure:
            raise self._failure
        return self.shipped

    def cancel(self) -> None:
        """Drop what is queued and wait for what is under way."""
        self._failure = self._failure or StoreError("the load was stopped.")
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _done(self, future: Future[None]) -> None:
        self._free.release()
        if not future.cancelled() and future.exception() and not self._failure:
            self._failure = future.exception()

    def _work(self, part: bytes | tuple[Undated, ...]) -> None:
        if not self._failure:
            self._bulk(part if isinstance(part, bytes) else self._place(part))

    def _place(self, documents: tuple[Undated, ...]) -> bytes:
        """Return the body that writes documents where they stand already, be it another day's index."""
        place: dict[str, str] = {}
        for start in range(0, len(documents), _LOOKUP):
            ids = [document.event_id for document in documents[start : start + _LOOKUP]]
            place |= self._patiently(partial(self._find, ids))
        return b"".join(Undated(place.get(d.event_id, d.index), d.event_id, d.document).action() for d in documents)

    def _find(self, ids: list[str]) -> dict[str, str]:
        answer = self._client.search(
            index=ALL_PATTERN,
            query={"ids": {"values": ids}},
            size=len(ids),
            source=False,
            sort=["_doc"],
            allow_partial_search_results=False,  # a copy that is not seen would be written a second time
        )
        return {hit["_id"]: hit["_index"] for hit in answer["hits"]["hits"]}

    def _bulk(self, body: bytes) -> None:
        """Write a body; items that the server was too busy for are sent again, refused ones are counted by reason."""
        wait = _FIRST_WAIT_S
        while True:
            began = time.monotonic()
            busy = self._count(self._patiently(partial(self._request, body))["items"])
            if not busy:
                return
            lines = body.split(b"\n")
            body = b"".join(b"%b\n%b\n" % (lines[2 * position], lines[2 * position + 1]) for position in busy)
            self._wait(wait, StoreError(_TOO_BUSY), began)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _request(self, body: bytes) -> Any:
        return self._client.bulk(operations=[body], filter_path=FILTER)

    def _count(self, items: list[dict[str, Any]]) -> list[int]:
        """Add an answer to the counts; return the positions of the items that the server was too busy for.

        Raises StoreError where the disk is full: Elasticsearch says so with 429 too, but waiting does not help.
        """
        for item in items:
            if item["index"].get("error", {}).get("type") == "cluster_block_exception":
                raise StoreError(_DISK_FULL)
        statuses = [item["index"]["status"] for item in items]
        busy = [position for position, status in enumerate(statuses) if status in BUSY]
        with self._lock:
            self.shipped.created += statuses.count(201)
            self.shipped.existing += statuses.count(200)
            for item in items:
                if "error" in item["index"] and item["index"]["status"] not in BUSY:
                    error = item["index"]["error"]
                    reason = _OF_ONE.sub("", error.get("reason", ""))
                    self.shipped.refused[f"{error['type']}: {reason}"] += 1
        if len(busy) < len(items):
            self._patience.succeed()
        return busy

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Return what a call returns; while the server is busy or away, wait longer each time and call again."""
        wait = _FIRST_WAIT_S
        while True:
            began = time.monotonic()
            try:
                return call()
            except (TransportFailure, ConnectionTimeout) as error:
                self._wait(wait, error, began)
            except ApiError as error:
                if error.status_code not in BUSY:
                    raise
                self._wait(wait, error, began)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _wait(self, seconds: float, reason: Exception, began: float) -> None:
        """Sleep before the next try; give up where another sender failed, or patience is over."""
        if self._failure:
            raise self._failure
        self._patience.fail(reason, since=began)
        time.sleep(seconds)
