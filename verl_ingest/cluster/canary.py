"""A record written on each node, which must be found in Elasticsearch: proof that the way of its log lines is open."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

from verl_ingest.errors import SettingsError
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.settings import Settings

RUN = "verl-ingest-canary"

_POLL_S = 0.2
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Mark:
    """A line for a log file of its own, and the document that it must become."""

    path: str
    line: str
    index: str
    document_id: str


def mark(settings: Settings, *, node: str, nanoseconds: int) -> Mark:
    """Return the mark of a node, of that time since 1970.

    It lies where the first path of `paths.rank` (else another family with a {run} in it) has the logs of a run, in a
    file named after the node. Raises SettingsError where no path names a run.
    """
    if not settings.run_paths:
        raise SettingsError("No setting of `paths` has a {run} in it, so no record can be tried; set paths.rank.")
    path = _example(settings.run_paths[0], f"{re.sub(r'[^A-Za-z0-9.-]', '-', node)}-{nanoseconds}")
    line = orjson.dumps({"event": "canary", "timestamp_ns": nanoseconds, "hostname": node}).decode()
    normaliser = Normaliser(settings.model_copy(update={"node": node}))
    located = normaliser.locate(Path(path))
    if located is None:
        raise SettingsError(f"The file {path}, made from a path of `paths`, does not match it; mend that path.")
    file = normaliser.open(Path(path), run_id=located[0], relative=located[1])
    block = normaliser.block(file, line.encode() + b"\n", offset=0, fallback=Fallback(nanoseconds, "read"))
    action = orjson.loads(block.dated.split(b"\n", 1)[0])["index"]
    return Mark(path, line, action["_index"], action["_id"])


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


def _found(client: Elasticsearch, ids: list[str]) -> list[str]:
    """Return those of the ids that a search finds: what a reader sees, not only what the server has."""
    found = client.search(
        index=ALL_PATTERN, query={"ids": {"values": ids}}, size=len(ids), source=False, ignore_unavailable=True
    )
    return [hit["_id"] for hit in found["hits"]["hits"]]


def _example(pattern: str, name: str) -> str:
    """Return a path that a pattern matches: the run's name for {run}, `name` for the first star, digits for classes."""
    path = pattern.replace("{run}", RUN)
    folder, _, file = path.rpartition("/")
    folder = re.sub(r"\*", "canary", folder)
    file = file.replace("*", f"canary-{name}-", 1).replace("*", "")
    return re.sub(r"\[([^]!^])[^]]*\]|\?", lambda match: match[1] or "0", f"{folder}/{file}")
