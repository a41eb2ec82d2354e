"""The real agent: the golden documents, and into the real server the same ones as `load` gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from fluent.sender import EventTime, FluentSender

from tests import fluentbit, golden_agent
from tests.counting import count
from tests.waiting import wait_for
from verl_ingest.demo import logs
from verl_ingest.load import files, pipeline
from verl_ingest.normalise.lua import Normaliser


def stored(client: Elasticsearch, run: str) -> dict[str, dict[str, Any]]:
    """Return every document of a run: id -> index and document."""
    found, after = {}, {}
    client.indices.refresh(index="verl-*")
    while True:
        page = client.search(
            index="verl-*", query={"term": {"run_id": run}}, size=5_000, sort=[{"@timestamp": "asc"}, "_doc"], **after
        )["hits"]["hits"]
        if not page:
            return found
        after = {"search_after": page[-1]["sort"]}
        found |= {hit["_id"]: {"_index": hit["_index"], **hit["_source"]} for hit in page}


def test_the_agents_part_of_the_golden_files_is_fresh(fluent_bit: str) -> None:
    for log, text in golden_agent.run(fluent_bit).items():
        by_agent = [golden_agent.comparable(document) for document in json.loads(text)]
        committed = json.loads(golden_agent.agent_path(log).read_text(encoding="utf-8"))
        assert by_agent == [golden_agent.comparable(document) for document in committed], log


@pytest.mark.usefixtures("templated")
def test_a_load_after_the_agent_adds_nothing(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "agent-demo"
    logs.write(run, steps=30)
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    found = files.discover([run], Normaliser(settings))
    lines = sum(log.path.read_bytes().count(b"\n") for log in found.logs)
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: count(elasticsearch, "agent-demo") >= lines, timeout=60, what=f"{lines} documents")
    summary = pipeline.load(found.logs, elasticsearch, settings)
    assert (summary.created, summary.existing) == (0, lines)
    assert count(elasticsearch, "agent-demo") == lines


@pytest.mark.usefixtures("templated")
def test_lines_written_while_the_agent_is_killed_arrive_once(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "runs" / "agent-killed" / "rank0.jsonl"
    log.parent.mkdir(parents=True)
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    total = 0
    for round_ in range(3):
        agent = fluentbit.Agent(fluent_bit, tmp_path, settings)
        with log.open("a") as lines:
            for _ in range(2_000):
                total += 1
                lines.write(f'{{"step":{total},"loss":0.5,"timestamp_ns":{1_772_380_800_000_000_000 + total}}}\n')
        some = 500 * round_
        wait_for(lambda some=some: count(elasticsearch, "agent-killed") > some, timeout=20, what="some documents")
        agent.kill()
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: count(elasticsearch, "agent-killed") >= total, timeout=30, what=f"{total} documents")
    steps = {document["step"] for document in stored(elasticsearch, "agent-killed").values()}
    assert steps == set(range(1, total + 1))
    assert count(elasticsearch, "agent-killed") == total


def test_the_committed_configuration_names_only_what_fluent_bit_knows(fluent_bit: str, tmp_path: Path) -> None:
    """A start, since --dry-run misses much: unknown service keys, values, a missing Lua function."""
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state")
    (tmp_path / "runs" / "r" / "sub").mkdir(parents=True)
    with fluentbit.running(fluent_bit, tmp_path, settings) as agent:
        assert agent.problems() == []


@pytest.mark.usefixtures("templated")
def test_records_sent_by_the_training_process_arrive(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    (tmp_path / "runs").mkdir()
    with fluentbit.running(fluent_bit, tmp_path, settings) as agent:
        sender = FluentSender("verl", port=settings.agent.forward_port, nanosecond_precision=True)
        moment = EventTime(1_772_380_800, 123_456_789)
        record = {"run_id": "agent-forward", "step": 7, "rank": 3, "stage": "actor"}
        sent = [
            record | {"loss": 0.25, "kl": float("nan")},
            record | {"metric_name": "loss", "value": 1},
            record | {"event": "saved"},
            record | {"message": "hello", "level": "INFO"},
            record | {"loss": 0.25, "kl": float("nan")},  # the same again: one document
        ]
        for each in sent:
            assert sender.emit_with_time("train", moment, each)
        wait_for(lambda: count(elasticsearch, "agent-forward") >= 4, timeout=20, what="4 documents")
        sender.close()
        assert agent.problems() == []
    found = list(stored(elasticsearch, "agent-forward").values())
    assert len(found) == 4
    assert {document["@timestamp"] for document in found} == {"2026-03-01T16:00:00.123456789Z"}
    assert {document["step_key"] for document in found} == {"agent-forward|7"}
    by_kind = {document["kind"]: document for document in found if "metric_name" not in document}
    assert (by_kind["metric"]["metrics"], by_kind["metric"]["flags"]) == ({"loss": 0.25}, ["nan:kl"])
    assert by_kind["event"]["event"] == "saved"
    assert (by_kind["log"]["message"], by_kind["log"]["log.level"]) == ("hello", "info")


@pytest.mark.usefixtures("templated")
def test_the_agent_reports_what_it_drops(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "runs" / "agent-drops" / "console.log"
    log.parent.mkdir(parents=True)
    log.write_text("\n" * 10_050 + "one line\n")
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    with fluentbit.running(fluent_bit, tmp_path, settings):
        wait_for(lambda: count(elasticsearch, "agent-drops") >= 2, timeout=20, what="2 documents")
    report = next(each for each in stored(elasticsearch, "agent-drops").values() if each["kind"] == "event")
    assert (report["event"], report["metrics"]) == ("dropped", {"empty": 10_000})
    assert (report["log.file.path"], report["log.offset"]) == ("console.log", 9_999)
