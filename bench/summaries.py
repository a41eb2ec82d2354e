"""Asking with step summaries and without, in turns, of a run with many ranks; and what making them costs."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from unittest import mock

from elasticsearch import Elasticsearch

from verl_ingest.catalog import metrics
from verl_ingest.context import attempts, onset, pooling, step
from verl_ingest.context.dates import settled
from verl_ingest.load import pipeline
from verl_ingest.load.files import LogFile
from verl_ingest.query.elastic import ElasticRun, ElasticStore
from verl_ingest.settings import Settings
from verl_ingest.summarise.run import bring_up_to_date

RANKS = 128
ROUNDS = 12
WARM = 2
WINDOW = 50
CATALOGUE = metrics.load()


def measure(client: Elasticsearch, logs: Sequence[LogFile], settings: Settings, *, last_step: int) -> dict[str, float]:
    """Return how many times as long asking takes without, and the times of making summaries over that of the load."""
    loaded = pipeline.load(logs, client, settings)
    client.indices.refresh(index="verl-*")
    store, run_id, now = ElasticStore(client), logs[0].run_id, round(time.time() * 1_000)

    def baseline(round_: int) -> float:
        """Read what a step's context compares with: 50 steps before it, the first 50, the presence in the last 10."""
        with store.open(run_id) as run:
            at = last_step - round_
            documents = settled(run.records(at))
            known, keys = attempts.find(run, documents), list(pooling.last_values(documents))
            parts = ((1, WINDOW), (at - WINDOW, at - 1))
            segments = [segment for part in parts for segment in attempts.segments(known, len(known), *part)]
            recent = attempts.segments(known, len(known), at - 10, at - 1)
            return _seconds(lambda: run.history(segments, recent, keys))

    def context(round_: int) -> float:
        with store.open(run_id) as run:
            return _seconds(lambda: step.assemble(run, last_step - round_, catalogue=CATALOGUE, now=now))

    def suspects(round_: int) -> float:
        """Look for steps that may be abnormal as `first-bad` does, before it reads each of them."""
        with store.open(run_id) as run:
            steps = range(2 + round_, last_step)  # others each time, since the server remembers answers
            return _seconds(lambda: onset.suspects(run, steps, catalogue=CATALOGUE, window=WINDOW))

    def summarise() -> None:
        with store.open(run_id) as run:
            bring_up_to_date(run, client, catalogue=CATALOGUE)

    first, second = _seconds(summarise), _seconds(summarise)
    return {
        "lines": loaded.lines,
        "making": first / loaded.seconds,
        "again": second / loaded.seconds,
        "baseline": _without_over_with(baseline),
        "context": _without_over_with(context),
        "suspects": _without_over_with(suspects),
    }


def _without_over_with(ask: Callable[[int], float]) -> float:
    """Ask each question with and without summaries, and return the ratio of the medians."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for round_ in range(WARM + ROUNDS):
        for use in (True, False) if round_ % 2 else (False, True):
            with nullcontext() if use else mock.patch.object(ElasticRun, "summaries", lambda *_: []):
                taken = ask(round_)
            if round_ >= WARM:
                times[use].append(taken)
    return statistics.median(times[False]) / statistics.median(times[True])


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started
