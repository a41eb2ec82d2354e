"""Questions about one run among the records of many others, against the same while it is the only one."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import orjson
from elasticsearch import Elasticsearch

from bench import asking
from tests.waiting import wait_for
from verl_ingest.catalog import metrics
from verl_ingest.context import runs, step, why
from verl_ingest.demo import logs as sample
from verl_ingest.load import files, pipeline
from verl_ingest.load.files import LogFile
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.serve import drilldown
from verl_ingest.settings import Settings

RUN = "asked"
STEPS = 1_250  # of each run: 200,000 records
DAYS = 5  # and their indices, which the runs take turns with
LOAD_S = 25 * 60  # whatever is there by then
REST_S = 600  # for merges that go on after the load
ROUNDS = {"run list": 20, "why": 6, "drill-down": 20}  # why looks at a thousand steps of this run each time
LISTED = 20  # runs, as `verl-ingest runs` has them
CATALOGUE = metrics.load()


class Asked(NamedTuple):
    """Seconds that a question takes."""

    median: float
    p95: float


class Found(NamedTuple):
    """Records and runs that are there, seconds by question, and what a step takes over its searches alone (p95)."""

    records: int
    runs: int
    seconds: dict[str, Asked]
    step_ratio: float


def measure(client: Elasticsearch, folder: Path, settings: Settings, *, records: int) -> tuple[Found, Found]:
    """Return what is found while one run is there, and when others of its size make it so many records."""
    loads, found = _runs(folder, settings), []
    loaded = number = 0
    for wanted in (1, records):
        deadline = time.monotonic() + LOAD_S
        while loaded < wanted and time.monotonic() < deadline:
            loaded += pipeline.load(next(loads), client, settings).created
            number += 1
        client.indices.refresh(index="verl-*")
        wait_for(lambda: not _merges(client), timeout=REST_S, what="end of merges")
        _ask(client, records=loaded, number=number)  # a server that has just loaded is cold
        found.append(_ask(client, records=loaded, number=number))
    return found[0], found[1]


def _runs(folder: Path, settings: Settings) -> Iterator[Sequence[LogFile]]:
    """Yield the logs of one run after the other; those of a day have the same lines under other names."""
    days: list[Sequence[LogFile]] = []
    for number in count():
        if number < DAYS:
            with mock.patch.object(sample, "START", sample.START + number * 86_400):
                sample.write(folder / str(number), steps=STEPS, long_only=True)
            days.append(files.discover([folder / str(number)], Normaliser(settings)).logs)
        yield [replace(log, run_id=f"other-{number}" if number else RUN) for log in days[number % DAYS]]


def _merges(client: Elasticsearch) -> int:
    return client.indices.stats(index="verl-*", metric="merge")["_all"]["total"]["merges"]["current"]


def _ask(client: Elasticsearch, *, records: int, number: int) -> Found:
    """Ask each question; `records` and `number` of runs are those that are there."""
    store = ElasticStore(client)
    now = round(time.time() * 1_000)

    def one_step(number: int) -> dict[str, Any]:
        with store.open(RUN) as run:
            body = step.assemble(run, number, catalogue=CATALOGUE, now=now).body
        orjson.dumps(body)
        return body

    def list_runs(_: int) -> object:
        return [run.entry() for run in runs.newest(store, catalogue=CATALOGUE, now=now, most=LISTED)]

    def explain(_: int) -> object:
        with store.open(RUN) as run:
            return why.explain(run, catalogue=CATALOGUE, now=now).entry()

    def drill_down(round_: int) -> object:
        moment = round(1_000 * (sample.START + (300 + 40 * round_) * sample.STEP_SECONDS))
        with store.open(RUN) as run:
            return drilldown.find(run, drilldown.Wanted(run_id=RUN, time=moment, bucket=60_000)).step

    of_step = asking.timed(client, one_step, last_step=STEPS)
    seconds = {"step": Asked(of_step["context_s"], of_step["context_p95_s"])}
    for name, ask in {"run list": list_runs, "why": explain, "drill-down": drill_down}.items():
        seconds[name] = _timed(client, ask, rounds=ROUNDS[name])
    return Found(records, number, seconds, of_step["p95_ratio"])


def _timed(client: Elasticsearch, ask: Callable[[int], object], *, rounds: int) -> Asked:
    """Ask in rounds after a first one; the server, which remembers answers, forgets them before each."""
    taken = []
    for round_ in range(1 + rounds):
        client.indices.clear_cache(index="verl-*", request=True)
        started = time.perf_counter()
        if ask(round_) in (None, []):
            raise RuntimeError(f"round {round_} found nothing")
        taken.append(time.perf_counter() - started)
    taken = taken[1:]
    return Asked(statistics.median(taken), statistics.quantiles(taken, n=20, method="inclusive")[-1])
