"""The context of a step among a million records, against the bare searches that it needs."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from elasticsearch import Elasticsearch

from verl_ingest.catalog import metrics
from verl_ingest.context import step
from verl_ingest.query.elastic import ElasticStore

STEPS = 60
WARM = 10


def measure(client: Elasticsearch, run: str, *, last_step: int) -> dict[str, float]:
    """Return median and 95th percentile (s) of the whole context, the median of its requests alone, and the ratios."""
    catalogue, store = metrics.load(), ElasticStore(client)

    def ask(number: int) -> dict[str, Any]:
        with store.open(run) as opened:
            return step.assemble(opened, number, catalogue=catalogue, now=int(time.time() * 1000)).body

    return timed(client, ask, last_step=last_step)


def timed(client: Elasticsearch, ask: Callable[[int], dict[str, Any]], *, last_step: int) -> dict[str, float]:
    """Measure as `measure` says; `ask` returns the context of a step and sends its requests through the client."""
    clock = _Clock(client)
    whole, requests, counts = [], [], []
    for number in range(WARM + STEPS):
        chosen = 100 + number * (last_step - 200) // (WARM + STEPS)
        clock.reset()
        started = time.perf_counter()
        found = ask(chosen)
        elapsed = time.perf_counter() - started
        if found["completeness"]["found"] < 100:
            raise RuntimeError(f"step {chosen} has {found['completeness']['found']} records")
        if number >= WARM:
            whole.append(elapsed)
            requests.append(clock.seconds)
            counts.append(clock.requests)
    clock.stop()
    p95 = [statistics.quantiles(values, n=20)[-1] for values in (whole, requests)]
    return {
        "requests": statistics.median(counts),
        "context_s": statistics.median(whole),
        "context_p95_s": p95[0],
        "searches_s": statistics.median(requests),
        "ratio": statistics.median(whole) / statistics.median(requests),
        "p95_ratio": p95[0] / p95[1],
    }


class _Clock:
    """Adds up the time that the client spends waiting for answers."""

    def __init__(self, client: Elasticsearch) -> None:
        self._transport, self._plain = client.transport, client.transport.perform_request
        self._transport.perform_request = self._timed  # type: ignore[method-assign]
        self.reset()

    def reset(self) -> None:
        self.seconds, self.requests = 0.0, 0

    def stop(self) -> None:
        self._transport.perform_request = self._plain  # type: ignore[method-assign]

    def _timed(self, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return self._plain(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - started
            self.requests += 1
