"""Dead letters of a real agent, shown and sent again; what is damaged, foreign or refused is named and kept."""

import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests.command import Outcome
from tests.deadletters import REAL, SECOND, START, decode, encode
from tests.waiting import wait_for
from verl_ingest.deadletters import letters
from verl_ingest.deadletters.chunk import Record
from verl_ingest.edge.fluentbit import rejected_folder
from verl_ingest.settings import Settings


def line(step: int, **fields: Any) -> str:
    record = {"step": step, "rank": 0, "loss": 0.5, "timestamp_ns": START + step * SECOND, **fields}
    return json.dumps(record) + "\n"


def stored(client: Elasticsearch, run: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return id -> index and document, of a run's documents."""
    client.indices.refresh(index="verl-*")
    hits = client.search(index="verl-*", query={"term": {"run_id": run}}, size=10_000)["hits"]["hits"]
    found = {hit["_id"]: (hit["_index"], hit["_source"]) for hit in hits}
    assert len(found) == len(hits)
    return found


def forget(client: Elasticsearch, run: str) -> None:
    found = [{"delete": {"_index": index, "_id": event_id}} for event_id, (index, _) in stored(client, run).items()]
    if found:
        client.bulk(operations=found, refresh=True)


def kept(agent: Settings) -> int:
    """Return how many records the agent has given up so far."""
    folder = rejected_folder(agent)
    found = letters.find([folder]) if folder.exists() else []
    return sum(len(decode(letter.path)[0]) for letter in found)


@pytest.fixture
def run() -> str:
    """A name that no other run has, on a server that outlives the test."""
    return f"dead-letters-{uuid.uuid4().hex[:8]}"


@pytest.mark.usefixtures("templated")
class TestAgent:
    """A real agent with a finite retry limit, which the kit does not render."""

    def test_what_an_outage_made_it_give_up_is_sent_again_once(
        self,
        fluent_bit: str,
        elasticsearch: Elasticsearch,
        elasticsearch_url: str,
        tmp_path: Path,
        run: str,
        ask: Callable[..., Outcome],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        folder = tmp_path / "runs" / run
        (folder / "rollout").mkdir(parents=True)
        down = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state")
        (folder / "rollout" / "7.jsonl").write_text('{"input":"a \u957f","output":"b","score":0.3,"step":7}\n')
        total = 1
        for half in range(2):  # a restart in between: the files of the first agent must outlive it
            with (folder / "rank0.jsonl").open("a") as log:
                log.writelines(line(500 * half + n, kl=0.1 * n, note="长 / é") for n in range(500))
                log.write("not json\n")
            total += 501
            with fluentbit.running(fluent_bit, tmp_path, down, retry_limit=1):
                wait_for(lambda total=total: kept(down) >= total, timeout=60, what=f"{total} rejected records")
        assert kept(down) == total
        assert stored(elasticsearch, run) == {}

        monkeypatch.setenv("VERL_INGEST_AGENT__STATE", down.agent.state)  # its folder is the default
        shown = ask("dead-letters", "--json")
        files = json.loads(shown.out)["files"]
        assert (shown.code, shown.err) == (0, "")
        assert sum(file["records"] for file in files) == sum(file["missing"] for file in files) == total
        assert {file["tag"] for file in files} == {"verl.records", "verl.samples"}
        assert {name for file in files for name in file["runs"]} == {run}

        sent = json.loads(ask("dead-letters", "--replay", "--json").out)["files"]
        assert sum(file["created"] for file in sent) == sum(file["stored"] for file in sent) == total
        replayed = stored(elasticsearch, run)
        assert len(replayed) == total

        again = json.loads(ask("dead-letters", "--replay", "--remove", "--json").out)["files"]
        assert [(file["created"], file["missing"], file["removed"]) for file in again] == [(0, 0, True)] * len(files)
        assert stored(elasticsearch, run) == replayed
        assert "No dead letters in" in ask("dead-letters").out

        forget(elasticsearch, run)
        up = fluentbit.settings_for(tmp_path / "runs", tmp_path / "other", url=elasticsearch_url)
        with fluentbit.running(fluent_bit, tmp_path, up):
            wait_for(lambda: len(stored(elasticsearch, run)) >= total, timeout=60, what=f"{total} documents")
        assert comparable(stored(elasticsearch, run)) == comparable(replayed)

    def test_what_elasticsearch_refuses_stays_with_the_reason(
        self,
        fluent_bit: str,
        elasticsearch: Elasticsearch,
        elasticsearch_url: str,
        tmp_path: Path,
        run: str,
        ask: Callable[..., Outcome],
    ) -> None:
        index = "verl-2031.05.05"
        strict = {"type": "ip", "ignore_malformed": False}
        mapping = {"properties": {"metrics": {"properties": {"dead_letters_test": strict}}}}
        elasticsearch.indices.delete(index=index, ignore_unavailable=True)
        elasticsearch.indices.create(index=index, mappings=mapping)
        log = tmp_path / "runs" / run / "rank0.jsonl"
        log.parent.mkdir(parents=True)
        noon = 1_935_748_800 * SECOND
        log.write_text("".join(line(n, dead_letters_test=0.5, timestamp_ns=noon + n) for n in range(20)))
        up = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
        with fluentbit.running(fluent_bit, tmp_path, up, retry_limit=1):
            wait_for(lambda: kept(up) == 20, timeout=60, what="20 rejected records")
        folder = str(rejected_folder(up))
        refused = ask("dead-letters", folder, "--replay", "--remove", "--json")
        assert refused.code == 1
        assert refused.err.startswith("error: Elasticsearch refused 20 documents (20 for document_parsing_exception: ")
        files = json.loads(refused.out)["files"]
        assert sum(file["missing"] for file in files) == 20
        assert not any(file["removed"] for file in files)
        shown = ask("dead-letters", folder, "--replay")
        assert "refused, document_parsing_exception: " in shown.out
        assert stored(elasticsearch, run) == {}

        elasticsearch.indices.delete(index=index)
        mended = ask("dead-letters", folder, "--replay", "--remove")
        assert (mended.code, mended.err) == (0, "")
        assert "20 new" in mended.out
        assert {place for place, _ in stored(elasticsearch, run).values()} == {index}
        assert letters.find([rejected_folder(up)]) == []
        elasticsearch.indices.delete(index=index)


def comparable(found: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, tuple[str, str]]:
    """Return documents as text, 1 and 1.0 apart; of lines without a time without that of reading."""
    return {
        event_id: ("", json.dumps({**document, "@timestamp": ""}, sort_keys=True))
        if document["time_source"] == "read"
        else (index, json.dumps(document, sort_keys=True))
        for event_id, (index, document) in found.items()
    }


@pytest.mark.usefixtures("templated")
class TestCommand:
    def test_a_file_is_shown_sent_and_removed(
        self, elasticsearch: Elasticsearch, tmp_path: Path, ask: Callable[..., Outcome]
    ) -> None:
        forget(elasticsearch, "dead-letters-fixture")
        file = Path(shutil.copy(REAL, tmp_path))
        first = ask("dead-letters", str(tmp_path))
        assert (first.code, first.err) == (0, "")
        head, _, row, below, *_ = first.out.splitlines()
        assert head == "4 records in 1 rejected file (times are UTC)"
        assert row.split()[0] == file.name
        assert row.split()[2:] == ["4", "2026-03-01", "16:00:01", "0"]
        assert below.startswith("to output records, of dead-letters-fixture")
        assert below.endswith("4 missing")
        assert all(text == text.rstrip() for text in first.out.splitlines())
        assert stored(elasticsearch, "dead-letters-fixture") == {}
        sent = ask("dead-letters", str(file), "--replay")
        assert "4 new" in sent.out
        assert "All records of 1 file are in the index; --remove removes such files." in sent.out
        documents = stored(elasticsearch, "dead-letters-fixture")
        assert documents["wlG9518RAAAAAGyc-qgS"] == (
            "verl-2026.03.01",
            {
                "@timestamp": "2026-03-01T16:00:02.123456789Z",
                "kind": "metric",
                "metrics": {"kl": 1e-05, "loss": 0.12, "third": 0.3333333333333333},
                "time_source": "record",
                "nonfinite": ["entropy"],
                "rank": 0,
                "step": 2,
                "run_id": "dead-letters-fixture",
                "step_key": "dead-letters-fixture|2",
                "step_source": "record",
                "event_id": "wlG9518RAAAAAGyc-qgS",
                "flags": ["nan:entropy"],
            },
        )
        assert file.exists()
        assert "Removed 1 file" in ask("dead-letters", str(tmp_path), "--remove").out
        assert not file.exists()
        assert stored(elasticsearch, "dead-letters-fixture") == documents

    def test_a_document_in_another_days_index_is_there_already(
        self, elasticsearch: Elasticsearch, tmp_path: Path, ask: Callable[..., Outcome]
    ) -> None:
        """As where a load gave a line without a time a better one."""
        forget(elasticsearch, "dead-letters-fixture")
        undated = decode(REAL)[0][3].document | {"@timestamp": "2026-03-01T16:00:03Z", "time_source": "estimated"}
        elasticsearch.index(index="verl-2026.03.01", id=undated["event_id"], document=undated, refresh=True)
        shutil.copy(REAL, tmp_path)
        (file,) = json.loads(ask("dead-letters", str(tmp_path), "--replay", "--json").out)["files"]
        assert (file["records"], file["created"], file["stored"], file["missing"]) == (4, 3, 4, 0)
        assert stored(elasticsearch, "dead-letters-fixture")[undated["event_id"]] == ("verl-2026.03.01", undated)

    def test_damaged_and_foreign_files_are_named_and_kept_and_the_others_sent(
        self, elasticsearch: Elasticsearch, tmp_path: Path, ask: Callable[..., Outcome]
    ) -> None:
        forget(elasticsearch, "dead-letters-fixture")
        (tmp_path / "verl.records_0_records_0x1.flb").write_bytes(REAL.read_bytes()[:500])
        (tmp_path / "kube.x_0_es.0_0x2.flb").write_bytes(REAL.read_bytes())
        (tmp_path / "5-1795971319.1.flb").write_bytes(REAL.read_bytes())
        strange = [Record(START, {"log": "never saw the filter"})]
        (tmp_path / "verl.records_0_records_0x3.flb").write_bytes(encode(decode(REAL)[0][:3] + strange))
        (tmp_path / "notes.txt").write_text("no chunk")
        done = ask("dead-letters", str(tmp_path), "--replay", "--remove", "--json")
        assert done.code == 1
        assert done.err.endswith(" (3 more such files)\n")
        files = {Path(file["path"]).name: file for file in json.loads(done.out)["files"]}
        assert {name: file["error"].removeprefix(f"{tmp_path}/{name}: ") for name, file in files.items()} == {
            "verl.records_0_records_0x1.flb": "damaged at byte 494, only the 2 records before that are taken; "
            "load the logs of its runs again to bring what is lost.",
            "kube.x_0_es.0_0x2.flb": "the tag kube.x is not the kit's, so the index of its records is not known; "
            "it is left alone.",
            "5-1795971319.1.flb": "the name is not TAG_0_OUTPUT_0xADDRESS.flb, so the index of its records is not "
            "known; it is left alone.",
            "verl.records_0_records_0x3.flb": "1 of its records are not the kit's, and are left alone.",
        }
        assert all(Path(file["path"]).exists() for file in files.values())
        assert len(stored(elasticsearch, "dead-letters-fixture")) == 3
        shown = ask("dead-letters", str(tmp_path))
        assert shown.code == 1
        assert "damaged at byte 494" in shown.out

    def test_a_file_that_grew_meanwhile_is_not_removed(self, tmp_path: Path) -> None:
        (letter,) = letters.find([shutil.copy(REAL, tmp_path / REAL.name)])
        letter.path.write_bytes(encode(decode(REAL)[0] * 2))
        letters.remove(letter)
        assert (letter.removed, letter.path.exists()) == (False, True)

    def test_without_a_server_the_files_are_shown_all_the_same(
        self, tmp_path: Path, ask: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:1")
        shutil.copy(REAL, tmp_path)
        done = ask("dead-letters", str(tmp_path))
        assert done.code == 1
        assert done.err.startswith("error: Elasticsearch at http://127.0.0.1:1 can't be reached")
        assert "4 records in 1 rejected file" in done.out
        assert "not asked" in done.out
        assert ask("dead-letters", str(tmp_path), "--replay").out == ""

    def test_nothing_there_and_no_such_path(self, tmp_path: Path, ask: Callable[..., Outcome]) -> None:
        assert ask("dead-letters", str(tmp_path)) == Outcome(0, f"No dead letters in {tmp_path}.\n", "")
        wrong = ask("dead-letters", str(tmp_path / "a"))
        assert (wrong.code, wrong.err) == (1, f"error: {tmp_path}/a: it can't be read: No such file or directory.\n")

    def test_without_the_agents_folder_it_says_so(
        self, tmp_path: Path, ask: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = tmp_path / "state"
        monkeypatch.setenv("VERL_INGEST_AGENT__STATE", str(state))
        missing = f"error: {state}: no such folder; start the agent, or set agent.state to the folder that it uses.\n"
        assert ask("dead-letters") == Outcome(1, "", missing)
        state.mkdir()
        assert ask("dead-letters") == Outcome(0, f"No dead letters in {state}/rejected.\n", "")
        monkeypatch.setattr(os, "access", lambda path, mode: path != state)  # root may read every folder
        closed = f"error: {state}: the agent's folder can't be read; run this as the agent's user.\n"
        assert ask("dead-letters") == Outcome(1, "", closed)
