"""Pins: runs whose records stay whatever their age; kept in the kit's own index."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from elasticsearch import Elasticsearch, NotFoundError

from verl_ingest.errors import InputError, NotFound
from verl_ingest.index import state

KIND = "pin"
MOST = 10_000  # what one search returns; nobody has as many


@dataclass(frozen=True)
class Pin:
    """A pinned run: since when (as an index has it), and why, where that was said."""

    run_id: str
    since: str
    why: str | None = None


def read(client: Elasticsearch) -> list[Pin]:
    """Return all pins, the oldest first.

    Raises what the client raises: whoever may not see the pins must not take it that there are none.
    """
    try:
        found = client.search(
            index=state.INDEX,
            query={"term": {"kind": KIND}},
            sort="@timestamp",
            size=MOST,
            allow_partial_search_results=False,
        )
    except NotFoundError:
        return []
    sources = (hit["_source"] for hit in found["hits"]["hits"])
    return [Pin(source["run_id"], source["@timestamp"], source.get("why")) for source in sources]


def add(client: Elasticsearch, pin: Pin) -> None:
    """Keep a pin in place of what there is of its run; from its return on every reader sees it."""
    document = {"@timestamp": pin.since, "kind": KIND, "run_id": pin.run_id, "why": pin.why}
    client.index(index=state.INDEX, id=_document_id(pin.run_id), document=document, refresh=True)


def remove(client: Elasticsearch, run_id: str) -> None:
    """Remove the pin of a run; one that is gone already is no error."""
    client.options(ignore_status=404).delete(index=state.INDEX, id=_document_id(run_id), refresh=True)


def find(pins: Sequence[Pin], text: str) -> Pin:
    """Return the pin of the run of that name, or of the only one whose name begins so.

    Raises NotFound where no pinned run does, InputError where several do.
    """
    matches = [pin for pin in pins if pin.run_id.startswith(text)]
    for pin in matches:
        if pin.run_id == text or len(matches) == 1:
            return pin
    if matches:
        names = ", ".join(pin.run_id for pin in matches)
        raise InputError(f"'{text}' is the beginning of {len(matches)} pinned runs: {names}; write more of the name.")
    raise NotFound(f"No run '{text}' is pinned; `verl-ingest pins` lists those that are.")


def _document_id(run_id: str) -> str:
    """Return an id that is short however long the run's name is."""
    return base64.urlsafe_b64encode(hashlib.sha256(f"{KIND}:{run_id}".encode()).digest()[:15]).decode()
