"""Try whether records arrive: one is written on each node, found in Elasticsearch, and removed again."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

from verl_ingest.cluster.mark import RUN, Mark, mark
from verl_ingest.cluster.target import Target, refusal
from verl_ingest.context.words import listed
from verl_ingest.errors import KitError
from verl_ingest.index import client
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.settings import Settings

_POLL_S = 0.2
_AT_ONCE = 1_000


def fly(settings: Settings, target: Target, folder: Path, tell: Callable[[str, float], None]) -> float:
    """Write a record on each node, `tell` node and seconds as each is found, and remove all of them again.

    The seconds count from when the last node was written to, by this machine's clock; those of nodes differ. Returns
    the seconds that the writing took, to start kubectl, Ansible or srun included: a record may be older by so much.
    Raises KitError where an agent does not answer, or a record is not found within deploy.canary_s.
    """
    names = target.tried(folder)
    now = time.time_ns()
    marks = {name: mark(settings, node=name, nanoseconds=now + number) for number, name in enumerate(names)}
    missing = dict.fromkeys(names)
    with client.explained(settings), client.connect(settings) as server:
        sweep(server)
        try:
            began = time.monotonic()
            target.write(folder, marks)
            written = time.monotonic()
            for name in find(server, marks, within_s=settings.deploy.canary_s):
                del missing[name]
                tell(name, time.monotonic() - written)
        finally:
            target.erase(folder, marks)
            sweep(server)
    if missing:
        found = f"The record written on {listed(list(missing))} was not found within {settings.deploy.canary_s} s"
        for node in target.nodes(folder):
            if node.name in missing and (why := refusal(node)):
                raise KitError(f"{found}: {why}")
        logs = Path(marks[next(iter(missing))].path).parent
        raise KitError(
            f"{found}; look at that agent's log, whether it may read {logs} there, and at `verl-ingest status`."
        )
    return written - began


def find(client: Elasticsearch, marks: Mapping[str, Mark], *, within_s: float) -> Iterator[str]:
    """Yield each node as soon as a search finds its mark; end when all are found, or after `within_s` seconds.

    Raises what the client raises.
    """
    waited = {mark.document_id: node for node, mark in marks.items()}
    deadline = time.monotonic() + within_s
    while waited:
        for document_id in _found(client, list(waited)[:_AT_ONCE]):
            yield waited.pop(document_id)
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)


def sweep(client: Elasticsearch) -> None:
    """Delete every mark from Elasticsearch, those of earlier tries too; raises what the client raises."""
    found = client.search(
        index=ALL_PATTERN, query={"term": {"run_id": RUN}}, size=10_000, source=False, ignore_unavailable=True
    )
    deletions = ({"_op_type": "delete", "_index": hit["_index"], "_id": hit["_id"]} for hit in found["hits"]["hits"])
    bulk(client, deletions, raise_on_error=False, refresh=True)  # one that is gone meanwhile is what we want


def _found(client: Elasticsearch, ids: Sequence[str]) -> list[str]:
    """Return those of the ids that a search finds: what a reader sees, not only what the server has."""
    found = client.search(
        index=ALL_PATTERN, query={"ids": {"values": ids}}, size=len(ids), source=False, ignore_unavailable=True
    )
    return [hit["_id"] for hit in found["hits"]["hits"]]
