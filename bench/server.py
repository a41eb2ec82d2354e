"""A server of its own for the benchmarks, with the kit's templates; its indices are emptied between rounds."""

from collections.abc import Iterator
from contextlib import contextmanager

from elasticsearch import Elasticsearch

from verl_ingest.index import apply
from verl_ingest.local import elasticsearch as local
from verl_ingest.settings import Settings

HEAP_MB = 2048


@contextmanager
def prepared(settings: Settings) -> Iterator[Elasticsearch]:
    """Run a server with the templates applied."""
    with local.running(heap_mb=HEAP_MB) as server, Elasticsearch(server.url, request_timeout=300) as client:
        apply.write(client, apply.compare(client, apply.wanted(settings)))
        yield client


def empty(client: Elasticsearch) -> None:
    """Remove every index of an earlier round."""
    for index in client.indices.get(index="*"):
        client.indices.delete(index=index)


def bytes_a_document(client: Elasticsearch, index: str) -> float:
    """Return the size of an index per document, merged to one segment and flushed."""
    client.indices.refresh(index=index)
    client.indices.forcemerge(index=index, max_num_segments=1)
    client.indices.flush(index=index)
    total = client.indices.stats(index=index)["_all"]["primaries"]
    return total["store"]["size_in_bytes"] / total["docs"]["count"]
