"""`load` against the ceiling: raw `_bulk` requests of the same documents, prepared in advance."""

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from elasticsearch import Elasticsearch

from bench import server
from verl_ingest.load import pipeline, shipper
from verl_ingest.load.files import LogFile
from verl_ingest.load.reader import Lines, read
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.settings import Settings

ROUNDS = 3


def measure(client: Elasticsearch, logs: Sequence[LogFile], settings: Settings) -> dict[str, float]:
    """Return the ceiling's time over the load's (1 is as fast as `_bulk` alone), median of ROUNDS rounds each."""
    bodies = prepare(logs, settings)
    lines = sum(body.count(b"\n") for body in bodies) // 2
    send(client, bodies[: len(bodies) // 8])  # the first requests meet a cold server
    raw, loaded = [], []
    for _ in range(ROUNDS):
        server.empty(client)
        started = time.perf_counter()
        send(client, bodies)
        raw.append(time.perf_counter() - started)
        server.empty(client)
        summary = pipeline.load(logs, client, settings)
        if summary.created != lines or not summary.complete:
            raise RuntimeError(f"the load wrote {summary.created} of {lines} documents")
        loaded.append(summary.seconds)
    ratio = statistics.median(raw) / statistics.median(loaded)
    return {"lines": lines, "raw_s": statistics.median(raw), "load_s": statistics.median(loaded), "ratio": ratio}


def prepare(logs: Sequence[LogFile], settings: Settings) -> list[bytes]:
    """Return the bodies that a load of these files sends."""
    normaliser, bodies = Normaliser(settings), []
    for log in logs:
        file = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
        for part in read(log, final=False):
            if isinstance(part, Lines):
                fallback = Fallback(log.modified_ns, "estimated")
                bodies.append(normaliser.block(file, part.data, offset=part.offset, fallback=fallback).dated)
    return bodies


def send(client: Elasticsearch, bodies: Sequence[bytes]) -> None:
    """Send bodies as the loader does, from as many threads."""
    with ThreadPoolExecutor(shipper.SENDERS) as pool:
        for answer in pool.map(partial(_bulk, client), bodies):
            if answer["errors"]:
                raise RuntimeError("the server refused a document")


def _bulk(client: Elasticsearch, body: bytes) -> dict[str, object]:
    return client.bulk(operations=[body], filter_path=shipper.FILTER).body
