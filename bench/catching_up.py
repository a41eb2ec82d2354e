"""An agent that catches up after an outage, against one with the same lines whose server was there all along."""

import statistics
import time
from pathlib import Path
from typing import NamedTuple

from elasticsearch import Elasticsearch

from bench import server
from tests import fluentbit
from tests.gate import Gate
from tests.waiting import wait_for
from verl_ingest.errors import KitError
from verl_ingest.lag import metrics
from verl_ingest.settings import Settings

ROUNDS = 3
OUTAGE_S = 20  # by then tries are as far apart as they get (scheduler.cap), and the storage has what it takes
BEGUN = 0.05  # of the lines: from there on they are delivered as fast as it goes, whatever was before
TIMEOUT_S = 600


class _Delivery(NamedTuple):
    """Seconds that all lines took; when the outage ended, chunks in the agent's storage, and lines it had not read."""

    seconds: float
    chunks: int = 0
    unread: int = 0


def measure(client: Elasticsearch, binary: str, runs: Path, place: Path, *, lines: int) -> dict[str, float]:
    """Return how fast lines are delivered after an outage over how fast without, medians of ROUNDS rounds each.

    `runs` has folders of runs with so many `lines`, which are all there when an agent starts. Told too is what waits
    when the outage ends: `chunks` in the agent's storage, and lines that are `unread`.
    """
    normal, after = [], []
    _deliver(client, binary, runs, place / "first", lines, 0)  # meets a cold server
    for round_ in range(ROUNDS):
        for deliveries, outage_s in ((normal, 0), (after, OUTAGE_S)):
            server.empty(client)
            deliveries.append(_deliver(client, binary, runs, place / f"{round_}-{outage_s}", lines, outage_s))
    medians = [statistics.median(each.seconds for each in deliveries) for deliveries in (normal, after)]
    return {
        "ratio": medians[0] / medians[1],
        "lines_a_second": lines / medians[0],
        "chunks": statistics.median(each.chunks for each in after),
        "unread": statistics.median(each.unread for each in after),
    }


def _deliver(client: Elasticsearch, binary: str, runs: Path, place: Path, lines: int, outage_s: float) -> _Delivery:
    """Let an agent of its own deliver all lines, behind a gate that opens after `outage_s`."""
    gate = Gate(next(iter(client.transport.node_pool.all())).base_url)
    settings = fluentbit.settings_for(runs, place / "state", url=gate.url)
    chunks = unread = 0
    if outage_s:
        gate.close()
    with fluentbit.running(binary, place, settings) as agent:
        if outage_s:
            time.sleep(outage_s)
            chunks = metrics.read(settings).chunks
            unread = lines - sum(counters["records"] for counters in agent.metrics()["input"].values())
            gate.open()
        begun, began = _delivered(settings, BEGUN * lines)
        _, ended = _delivered(settings, lines)
    gate.close()
    client.indices.refresh(index="verl-*")
    if (found := client.count(index="verl-*")["count"]) != lines:
        raise RuntimeError(f"{found} of {lines} lines are in Elasticsearch")
    return _Delivery((ended - began) * lines / (lines - begun), chunks, unread)


def _delivered(settings: Settings, least: float) -> tuple[int, float]:
    """Wait until so many records are delivered; return how many then are, and when."""

    def enough() -> int:
        try:
            delivered = metrics.read(settings).delivered
        except KitError:  # it was too busy to answer
            return 0
        return delivered if delivered >= least else 0

    delivered = wait_for(enough, timeout=TIMEOUT_S, what=f"{least:.0f} records delivered")
    return delivered, time.perf_counter()
