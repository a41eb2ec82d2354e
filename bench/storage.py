"""Bytes a record, against what an agent's default mapping takes with path, offset and generated ids."""

import hashlib
import json
from collections.abc import Iterator, Sequence

from elasticsearch import Elasticsearch, helpers

from bench import server
from verl_ingest.load import pipeline
from verl_ingest.load.files import LogFile
from verl_ingest.settings import Settings

DEFAULT_INDEX = "default-mapping"


def measure(client: Elasticsearch, logs: Sequence[LogFile], settings: Settings) -> dict[str, float]:
    """Return bytes a record of the kit and of the default mapping, and their ratio; one segment each."""
    server.empty(client)
    summary = pipeline.load(logs, client, settings)
    kit = server.bytes_a_document(client, "verl-*")
    for ok, _ in helpers.parallel_bulk(client, _default_documents(logs), thread_count=2, chunk_size=5_000):
        assert ok
    default = server.bytes_a_document(client, DEFAULT_INDEX)
    server.empty(client)
    return {"lines": summary.lines, "kit_bytes": kit, "default_bytes": default, "ratio": kit / default}


def _default_documents(logs: Sequence[LogFile]) -> Iterator[dict[str, object]]:
    """Yield what Fluent Bit sends without the kit: the parsed line, path and offset; an id hashed from the record."""
    for log in logs:
        offset = 0
        with log.path.open("rb") as lines:
            for line in lines:
                document = json.loads(line, parse_constant=lambda name: None)  # it would refuse a NaN
                seconds, nanoseconds = divmod(document["timestamp_ns"], 1_000_000_000)
                document |= {
                    "path": str(log.path),
                    "offset": offset,
                    "@timestamp": seconds * 1000 + nanoseconds // 10**6,
                }
                digest = hashlib.md5(f"{log.path}:{offset}".encode()).hexdigest()
                name = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
                yield {"_index": DEFAULT_INDEX, "_id": name, "_source": document}
                offset += len(line)
