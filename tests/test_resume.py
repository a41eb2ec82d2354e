"""A run that is launched again: whatever becomes of its files, both attempts are kept, and the newest counts."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests.demo_store import LONG_AFTER
from tests.documents import metric_of
from tests.waiting import wait_for
from verl_ingest.audit import pipeline as audit
from verl_ingest.audit import store as audit_store
from verl_ingest.catalog import metrics
from verl_ingest.context import attempts, series, step
from verl_ingest.load import files, pipeline
from verl_ingest.load.shipper import Shipper
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

SETTINGS = Settings(timezone="Etc/UTC")
CATALOGUE = metrics.load()
START = 1_780_000_000  # 2026-05-28, in seconds
AGAIN = START + 3_600
RANKS = 2
FIRST, SECOND = range(1, 31), range(21, 41)  # the first launch dies in step 30, the checkpoint is of step 20

pytestmark = pytest.mark.usefixtures("templated")


def value(attempt: int, at: int, rank: int = 0) -> float:
    return attempt + at / 100 + rank / 1000


def rank_lines(attempt: int, steps: range, rank: int) -> bytes:
    """Lines of one process, each with its time."""
    begin = (START, AGAIN)[attempt - 1]
    return b"".join(
        json.dumps(
            {
                "stage": "actor",
                "step": at,
                "rank": rank,
                "kl_divergence": value(attempt, at, rank),
                "timestamp_ns": (begin + 10 * (at - steps[0])) * 10**9 + rank,
                "hostname": f"node-{rank}",
                "pid": 1_000 * attempt + rank,
            }
        ).encode()
        + b"\n"
        for at in steps
    )


def logger_lines(attempt: int, steps: range) -> bytes:
    """Lines of verl's file logger, which have no time and no process."""
    lines = [
        {
            "step": at,
            "data": {"actor/kl_loss": value(attempt, at), "timing_s/step": 10.0, "perf/host": f"{attempt}-{at}"},
        }
        for at in steps
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def put(path: Path, content: bytes, seconds: int, *, append: bool = False) -> None:
    with path.open("ab" if append else "wb") as file:
        file.write(content)
    os.utime(path, (seconds, seconds))


def ranks_overwritten(folder: Path) -> Iterator[None]:
    for attempt, steps, end in ((1, FIRST, START + 300), (2, SECOND, AGAIN + 200)):
        for rank in range(RANKS):
            put(folder / f"verl_actor_rank{rank}.jsonl", rank_lines(attempt, steps, rank), end)
        yield


def ranks_appended(folder: Path) -> Iterator[None]:
    for attempt, steps, end in ((1, FIRST, START + 300), (2, SECOND, AGAIN + 200)):
        for rank in range(RANKS):
            put(folder / f"verl_actor_rank{rank}.jsonl", rank_lines(attempt, steps, rank), end, append=True)
        yield


def ranks_in_containers(folder: Path) -> Iterator[None]:
    """Every launch has the same host and process id."""
    for attempt, steps, end in ((1, FIRST, START + 300), (2, SECOND, AGAIN + 200)):
        for rank in range(RANKS):
            lines = rank_lines(attempt, steps, rank).replace(f'"pid": {attempt}00'.encode(), b'"pid": 100')
            put(folder / f"verl_actor_rank{rank}.jsonl", lines, end, append=True)
        yield


def ranks_beside(folder: Path) -> Iterator[None]:
    for attempt, steps, end in ((1, FIRST, START + 300), (2, SECOND, AGAIN + 200)):
        for rank in range(RANKS):
            name = f"verl_actor_pid{1_000 * attempt + rank}_rank{rank}.jsonl"
            put(folder / name, rank_lines(attempt, steps, rank), end)
        yield


def logger_overwritten(folder: Path) -> Iterator[None]:
    put(folder / "metrics.jsonl", logger_lines(1, FIRST), START + 300)
    yield
    put(folder / "metrics.jsonl", logger_lines(2, SECOND), AGAIN + 200)
    yield


def logger_appended(folder: Path) -> Iterator[None]:
    put(folder / "metrics.jsonl", logger_lines(1, FIRST), START + 300)
    yield
    put(folder / "metrics.jsonl", logger_lines(2, SECOND), AGAIN + 200, append=True)
    yield


def logger_beside(folder: Path) -> Iterator[None]:
    put(folder / "metrics.jsonl", logger_lines(1, FIRST), START + 300)
    yield
    put(folder / "metrics-2.jsonl", logger_lines(2, SECOND), AGAIN + 200)
    yield


RELAUNCHES = [
    ranks_overwritten,
    ranks_appended,
    ranks_in_containers,
    ranks_beside,
    logger_overwritten,
    logger_appended,
    logger_beside,
]


def load(folder: Path, client: Elasticsearch, settings: Settings = SETTINGS) -> None:
    assert pipeline.load(files.discover([folder], Normaliser(settings)).logs, client, settings).complete
    client.indices.refresh(index="verl-*")


@pytest.fixture(params=RELAUNCHES, ids=lambda relaunch: relaunch.__name__)
def relaunched(request: pytest.FixtureRequest, templated: Elasticsearch, tmp_path: Path) -> tuple[str, str]:
    """The run of two launches, loaded after each of them, and the metric that it logs."""
    relaunch: Callable[[Path], Iterator[None]] = request.param
    folder = tmp_path / f"resume-{relaunch.__name__}-{time.time_ns()}"
    folder.mkdir()
    for _ in relaunch(folder):
        load(folder, templated)
    return folder.name, "kl_divergence" if "ranks" in relaunch.__name__ else "actor/kl_loss"


def mean(attempt: int, at: int, name: str) -> float:
    ranks = range(RANKS) if name == "kl_divergence" else range(1)
    return pytest.approx(sum(value(attempt, at, rank) for rank in ranks) / len(ranks))


def context(store: ElasticStore, run: str, at: int) -> dict[str, Any]:
    with store.open(run) as reader:
        return step.assemble(reader, at, catalogue=CATALOGUE, now=LONG_AFTER).body


def test_a_step_is_the_newest_attempts_and_the_others_are_listed(
    store: ElasticStore, relaunched: tuple[str, str]
) -> None:
    run, name = relaunched
    body = context(store, run, 25)
    assert body["attempt"] == 2
    assert metric_of(body, name)["mean"] == mean(2, 25, name)
    assert [attempt["attempt"] for attempt in body["attempts"]] == [1, 2]
    assert [attempt["metrics"] for attempt in body["attempts"]] == [
        {name: mean(1, 25, name)},
        {name: mean(2, 25, name)},
    ]
    assert body["attempts"][0]["last"] < body["attempts"][1]["first"]
    assert any(note.startswith("Attempt 1 logged this step before, until") for note in body["summary"])


def test_a_step_that_one_attempt_logged_is_that_attempts(store: ElasticStore, relaunched: tuple[str, str]) -> None:
    run, name = relaunched
    for at, attempt in ((5, 1), (20, 1), (35, 2)):
        body = context(store, run, at)
        assert [each["attempt"] for each in body["attempts"]] == [attempt]
        assert metric_of(body, name)["mean"] == mean(attempt, at, name)


def test_a_series_has_each_step_once_from_the_newest_attempt(store: ElasticStore, relaunched: tuple[str, str]) -> None:
    run, name = relaunched
    with store.open(run) as reader:
        levels = series.read(reader, name, catalogue=CATALOGUE).levels
    wanted = {at: mean(1, at, name) for at in range(1, 21)} | {at: mean(2, at, name) for at in SECOND}
    assert {at: level.mean for at, level in levels.items()} == wanted


def test_what_is_usual_comes_from_the_line_of_attempts_that_led_to_the_step(
    store: ElasticStore, relaunched: tuple[str, str]
) -> None:
    run, name = relaunched
    usual = metric_of(context(store, run, 35), name)["previous"]
    assert (usual["steps"], usual["median"]) == (34, pytest.approx(float(mean(1, 17, name).expected) + 0.005))


def test_both_attempts_are_in_the_index(
    store: ElasticStore, templated: Elasticsearch, relaunched: tuple[str, str]
) -> None:
    run, name = relaunched
    lines = (len(FIRST) + len(SECOND)) * (RANKS if name == "kl_divergence" else 1)
    assert templated.count(index="verl-*", query={"term": {"run_id": run}})["count"] == lines
    with store.open(run) as reader:
        known = attempts.find(reader, reader.records(25))
    assert [(each.number, each.first_step, each.last_step) for each in known] == [(1, 1, 30), (2, 21, 40)]


def audited(folder: Path, client: Elasticsearch, settings: Settings, *, repair: bool = False) -> dict[str, Any]:
    logs = files.discover([folder], Normaliser(settings)).logs
    shipper = Shipper(client) if repair else None
    return audit.audit(logs, audit_store.ElasticStore(client), settings, shipper=shipper).as_json()


def test_lines_of_a_kept_old_file_that_the_new_one_has_at_the_same_place_have_one_document(
    templated: Elasticsearch, tmp_path: Path
) -> None:
    folder = tmp_path / f"resume-same-{time.time_ns()}"
    folder.mkdir()
    start = b'{"event": "start", "ts": %d}\n' % START
    put(folder / "verl_actor_rank0.jsonl.1", start + rank_lines(1, FIRST, 0), START + 300)
    put(folder / "verl_actor_rank0.jsonl", start + rank_lines(2, SECOND, 0), AGAIN + 200)
    load(folder, templated)
    balance = audited(folder, templated, SETTINGS)
    assert (balance["lines"], balance["indexed"], balance["same_id"], balance["missing"]) == (52, 51, 1, 0)
    assert templated.count(index="verl-*", query={"term": {"run_id": folder.name}})["count"] == 51


def steps_of(client: Elasticsearch, run: str, pid: int) -> list[int]:
    client.indices.refresh(index="verl-*")
    query = {"bool": {"filter": [{"term": {"run_id": run}}, {"term": {"process.pid": pid}}]}}
    hits = client.search(index="verl-*", query=query, size=1_000)["hits"]["hits"]
    return sorted(hit["_source"]["step"] for hit in hits)


@pytest.fixture
def watched(elasticsearch_url: str, tmp_path: Path) -> tuple[Settings, Path]:
    """The settings of an agent, and the rank file that it tails."""
    log = tmp_path / "runs" / f"resume-agent-{time.time_ns()}" / "verl_actor_rank0.jsonl"
    log.parent.mkdir(parents=True)
    return fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url), log


def test_the_agent_keeps_both_attempts_of_a_file_that_is_written_anew(
    fluent_bit: str, templated: Elasticsearch, store: ElasticStore, watched: tuple[Settings, Path], tmp_path: Path
) -> None:
    settings, log = watched
    run, start = log.parent.name, b'{"event": "start", "ts": %d}\n' % START
    log.write_bytes(start + rank_lines(1, FIRST, 0))
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: steps_of(templated, run, 1_000) == [*FIRST], timeout=20, what="the first attempt")
        log.write_bytes(start)
        for at in SECOND:
            with log.open("ab") as file:
                file.write(rank_lines(2, SECOND, 0).splitlines(keepends=True)[at - SECOND[0]])
        wait_for(lambda: steps_of(templated, run, 2_000) == [*SECOND], timeout=20, what="the second attempt")
    assert steps_of(templated, run, 1_000) == [*FIRST]
    assert templated.count(index="verl-*", query={"term": {"run_id": run}})["count"] == 1 + len(FIRST) + len(SECOND)
    balance = audited(log.parent, templated, settings)
    assert (balance["lines"], balance["indexed"], balance["missing"]) == (1 + len(SECOND), 1 + len(SECOND), 0)
    body = context(store, run, 25)
    assert [each["metrics"]["kl_divergence"] for each in body["attempts"]] == [value(1, 25), value(2, 25)]


def test_what_the_agent_misses_of_a_file_written_anew_while_it_is_down_is_named_and_repaired(
    fluent_bit: str, templated: Elasticsearch, watched: tuple[Settings, Path], tmp_path: Path
) -> None:
    """Fluent Bit 5.1.1 reads on where it was, if the new file is longer."""
    settings, log = watched
    run = log.parent.name
    log.write_bytes(rank_lines(1, FIRST, 0))
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: steps_of(templated, run, 1_000) == [*FIRST], timeout=20, what="the first attempt")
    log.write_bytes(rank_lines(2, range(21, 61), 0))
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: 60 in steps_of(templated, run, 2_000), timeout=20, what="the end of the second attempt")
    missing = audited(log.parent, templated, settings)["missing"]
    assert missing == 40 - len(steps_of(templated, run, 2_000))
    assert audited(log.parent, templated, settings, repair=True)["missing"] == 0
    assert steps_of(templated, run, 1_000) == [*FIRST]
    assert steps_of(templated, run, 2_000) == [*range(21, 61)]
