"""Audits of what a real server has: the balance of every file, repairs, the command."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests.audits import SECOND, SETTINGS, START, assert_adds_up, line, offset_of
from tests.command import Outcome
from tests.waiting import wait_for
from verl_ingest.audit import pipeline, store
from verl_ingest.audit.balance import Report
from verl_ingest.demo import logs as demo_logs
from verl_ingest.load import files, reader, shipper
from verl_ingest.load import pipeline as loading
from verl_ingest.normalise.lua import Normaliser

DAY, NEXT_DAY = "verl-2026.03.01", "verl-2026.03.02"


def audited(path: Path, client: Elasticsearch, *, run: str | None = None, repair: bool = False, **other: Any) -> Report:
    found = files.discover([path], Normaliser(SETTINGS), run=run)
    ship = shipper.Shipper(client) if repair else None
    report = pipeline.audit(found.logs, store.ElasticStore(client), SETTINGS, shipper=ship, **other)
    assert_adds_up(report)
    return report


def load(path: Path, client: Elasticsearch, *, run: str | None = None) -> None:
    found = files.discover([path], Normaliser(SETTINGS), run=run)
    assert loading.load(found.logs, client, SETTINGS).complete


def stored(client: Elasticsearch, run: str) -> dict[int, dict[str, Any]]:
    """Return byte offset -> hit, of a run that has one file."""
    client.indices.refresh(index="verl-*")
    hits = client.search(index="verl-*", query={"term": {"run_id": run}}, size=10_000, version=True)["hits"]["hits"]
    return {offset_of(hit["_id"]): hit for hit in hits}


def delete(client: Elasticsearch, hit: Mapping[str, Any]) -> None:
    client.delete(index=hit["_index"], id=hit["_id"])


def copy(client: Elasticsearch, hit: Mapping[str, Any], index: str) -> None:
    client.index(index=index, id=hit["_id"], document=hit["_source"])


def move(client: Elasticsearch, hits: Sequence[Mapping[str, Any]], index: str) -> None:
    there = ({"index": {"_index": index, "_id": hit["_id"]}} for hit in hits)
    gone = [{"delete": {"_index": hit["_index"], "_id": hit["_id"]}} for hit in hits]
    written = [part for action, hit in zip(there, hits, strict=True) for part in (action, hit["_source"])]
    assert not client.bulk(operations=[*written, *gone])["errors"]


@pytest.mark.usefixtures("templated")
class TestBalance:
    def test_what_was_loaded_is_all_there(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        folder = tmp_path / "audit-healthy"
        (folder / "rollout").mkdir(parents=True)
        lines = [line(1), b"\n", line(2, kl=float("nan")), b"not json\n", line(3)[:20]]
        (folder / "verl_actor_rank0.jsonl").write_bytes(b"".join(lines))
        (folder / "metrics.jsonl").write_bytes(b'{"step":1,"data":{"loss":null,"kl":0.1}}\n')
        (folder / "rollout" / "1.jsonl").write_bytes(b'{"input":"a","output":"b","score":1.0,"step":1}\n')
        (folder / "console.log").write_bytes(b"[2026-03-01 16:00:00,000] [INFO] [a.py:1] [Rank 0] hello\n   \n")
        load(folder, elasticsearch)
        for full in (False, True):
            report = audited(folder, elasticsearch, full=full)
            numbers = report.as_json()
            assert {file["path"].rpartition("/")[2]: file["lines"] for file in numbers.pop("files")} == {
                "verl_actor_rank0.jsonl": 5,
                "metrics.jsonl": 1,
                "1.jsonl": 1,
                "console.log": 2,
            }
            assert numbers == {
                "lines": 9,
                "indexed": 6,
                "flagged": {"nan": 1, "unparsed": 1, "null": 1},
                "dropped": {"empty": 2},
                "missing": 0,
                "same_id": 0,
                "unfinished": 1,
                "in_two_days": 0,
            }

    @pytest.mark.parametrize("full", [False, True])
    def test_a_deleted_document_is_named_by_its_line_and_repaired(
        self, elasticsearch: Elasticsearch, tmp_path: Path, full: bool
    ) -> None:
        run = f"audit-deleted-{full}"
        log = tmp_path / run / "rank0.jsonl"
        log.parent.mkdir()
        lines = [line(step, kl=float("nan") if step == 7 else 0.1) for step in range(1_000)]
        log.write_bytes(b"".join(lines))
        load(log, elasticsearch)
        before = stored(elasticsearch, run)
        offsets = [sum(map(len, lines[:step])) for step in (0, 7, 8, 500, 999)]
        for offset in offsets:
            delete(elasticsearch, before[offset])
        report = audited(log, elasticsearch, full=full)
        (file,) = report.files
        assert file.missing_offsets.tolist() == offsets
        assert (file.indexed, file.missing, dict(file.flagged)) == (995, 5, {})
        assert file.first_missing == [(offsets[n], lines[s].decode().rstrip()) for n, s in enumerate((0, 7, 8))]
        assert len(stored(elasticsearch, run)) == 995  # it only looked
        mended = audited(log, elasticsearch, repair=True, full=full)
        (file,) = mended.files
        assert (file.indexed, file.missing, file.repaired, dict(file.flagged)) == (1_000, 0, 5, {"nan": 1})
        after = stored(elasticsearch, run)
        assert {o: hit["_source"] for o, hit in after.items()} == {o: hit["_source"] for o, hit in before.items()}
        untouched = [offset for offset in before if offset not in offsets]
        assert all(after[offset]["_version"] == before[offset]["_version"] for offset in untouched)

    def test_a_copy_in_another_day_is_seen_and_removed(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "audit-two-days" / "metrics.jsonl"
        log.parent.mkdir()
        undated = b'{"step":9,"data":{"loss":1.5}}\n'
        log.write_bytes(line(1) + line(2) + undated + line(3))
        os.utime(log, ns=(START, START))
        load(log, elasticsearch)
        before = stored(elasticsearch, "audit-two-days")
        assert {hit["_index"] for hit in before.values()} == {DAY}
        first, second, third, fourth = (before[offset] for offset in sorted(before))
        copy(elasticsearch, first, NEXT_DAY)
        copy(elasticsearch, second, "verl-2026.02.27")  # a line with a time belongs to its day, be it the later one
        copy(elasticsearch, third, NEXT_DAY)
        delete(elasticsearch, fourth)  # as many documents as lines in the indices of their days
        report = audited(log, elasticsearch)
        (file,) = report.files
        assert (file.indexed, file.missing, file.in_two_days) == (3, 1, 3)
        assert file.missing_offsets.tolist() == [offset_of(fourth["_id"])]
        mended = audited(log, elasticsearch, repair=True)
        (file,) = mended.files
        assert (file.indexed, file.missing, file.in_two_days, file.repaired) == (4, 0, 0, 4)
        after = stored(elasticsearch, "audit-two-days")
        assert {(hit["_id"], hit["_index"]) for hit in after.values()} == {
            (hit["_id"], DAY) for hit in (first, second, third, fourth)
        }

    def test_an_undated_document_may_stand_in_any_day(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "audit-undated" / "metrics.jsonl"
        log.parent.mkdir()
        log.write_bytes(b"".join(b'{"step":%d,"data":{"loss":1.5}}\n' % step for step in range(400)))
        os.utime(log, ns=(START, START))
        load(log, elasticsearch)
        os.utime(log, ns=(START + 3 * 86_400 * SECOND,) * 2)  # copied days later
        assert audited(log, elasticsearch).numbers()["indexed"] == 400
        after_midnight = list(stored(elasticsearch, "audit-undated").values())[100:]  # as an agent reads them
        move(elasticsearch, after_midnight, NEXT_DAY)
        numbers = audited(log, elasticsearch).numbers()
        assert (numbers["indexed"], numbers["missing"], numbers["in_two_days"]) == (400, 0, 0)

    def test_another_runs_name_finds_everything_missing(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "audit-name" / "rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(line(1, kl=float("nan")) + b"\n" + line(2))
        load(log, elasticsearch, run="audit-other-name")
        assert audited(log, elasticsearch, run="audit-other-name").missing == 0
        numbers = audited(log, elasticsearch).numbers()
        assert (numbers["indexed"], numbers["missing"], numbers["flagged"]) == (0, 2, {})

    def test_a_very_long_name_of_a_run(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "rank0.jsonl"
        log.write_bytes(line(1))
        load(log, elasticsearch, run="长" * 200)
        assert audited(log, elasticsearch, run="长" * 200).missing == 0

    def test_equal_lines_of_rotated_files_are_one_document(
        self, elasticsearch: Elasticsearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reader, "BLOCK_BYTES", 1 << 16)  # of which these files then have several
        folder = tmp_path / "audit-rotated"
        folder.mkdir()
        head = line(1) + line(2)
        (folder / "rank0.jsonl.1").write_bytes(head + line(3) * 2_000)
        (folder / "rank0.jsonl").write_bytes(head + line(4) + line(3) * 1_999)
        (folder / "rank1.jsonl").write_bytes(head)
        load(folder, elasticsearch)
        numbers = audited(folder, elasticsearch).numbers()
        assert (numbers["same_id"], numbers["missing"]) == (2 + 1_999, 0)
        assert numbers["indexed"] == 2_002 + 1 + 2

    def test_what_logs_really_hold_is_found_again(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "audit-hostile" / "rank0.jsonl"
        log.parent.mkdir()
        lines = [
            line(1, **{f"m{number}": number for number in range(1_050)}),
            line(2, text="长" * 11_000),
            b'{"index":{"_index":"x","_id":"y"}}\n',
            b'{"step":{"a":1},"rank":"x","metrics":7,"host":8,"extra":9,"flags":{"b":1},"_id":1,"run_id":{}}\n',
            b'{"event_id":"x","@timestamp":"never","kind":[1],"sample.score":"y","anomaly.rule":1,"":"","  ":0}\n',
            b"x" * 40_000 + b"\n",
            bytes(range(1, 10)) + bytes(range(11, 256)) + b"\n",
            b"\0" * 5_000 + b"\n",
            b"\r\n",
            b'{"step":7}\r\n',
        ]
        log.write_bytes(b"".join(lines))
        load(log, elasticsearch)
        numbers = audited(log, elasticsearch, full=True).numbers()
        assert (numbers["indexed"], numbers["dropped"], numbers["missing"]) == (8, {"empty": 2}, 0)
        for hit in stored(elasticsearch, "audit-hostile").values():
            delete(elasticsearch, hit)
        assert audited(log, elasticsearch, repair=True).numbers() == numbers

    def test_a_file_that_can_not_be_read_is_named_beside_the_others(
        self, elasticsearch: Elasticsearch, tmp_path: Path
    ) -> None:
        folder = tmp_path / "audit-unreadable"
        folder.mkdir()
        (folder / "rank0.jsonl").write_bytes(line(1))
        (folder / "rank1.jsonl").write_bytes(b"PK\3\4\0\0\0" * 100)
        load(folder / "rank0.jsonl", elasticsearch)
        report = audited(folder, elasticsearch)
        assert report.numbers()["indexed"] == 1
        assert report.unreadable == [f"{folder}/rank1.jsonl: this is a binary file, not a log; leave it out."]


@pytest.mark.usefixtures("templated")
class TestCommand:
    @pytest.fixture
    def log(self, elasticsearch: Elasticsearch, tmp_path: Path) -> Path:
        log = tmp_path / "audit-command" / "rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(b"".join(line(step, note="\x1b[31m" + "x" * 200) for step in range(9)) + line(9)[:9])
        load(log, elasticsearch)
        return log

    def test_good_is_0_missing_is_1_repaired_is_0(
        self, log: Path, elasticsearch: Elasticsearch, ask: Callable[..., Outcome]
    ) -> None:
        good = ask("audit", str(log.parent))
        assert (good.code, good.err) == (0, "")
        assert good.out.startswith("Audited 10 lines of 1 files of audit-command in ")
        hits = stored(elasticsearch, "audit-command")
        for offset in sorted(hits)[4:]:
            delete(elasticsearch, hits[offset])
        bad = ask("audit", str(log.parent))
        assert bad.code == 1
        assert bad.err == "error: 5 lines are missing in Elasticsearch; --repair ships them.\n"
        rows = bad.out.splitlines()
        text = "".join(rows)
        for offset in sorted(hits)[4:7]:
            assert f"{log}:{offset}" in rows
            assert log.read_bytes()[offset : offset + 80].decode() in text
        assert f"{log}:{sorted(hits)[7]}" not in text
        assert "and 2 more" in text
        listed = ask("audit", "--json", str(log.parent))
        assert listed.code == 1
        numbers = json.loads(listed.out)
        assert (numbers["lines"], numbers["indexed"], numbers["missing"], numbers["unfinished"]) == (10, 4, 5, 1)
        (file,) = numbers["files"]
        assert (file["path"], file["missing_offsets"]) == (str(log), sorted(hits)[4:])
        mended = ask("audit", "--repair", str(log.parent))
        assert (mended.code, mended.err) == (0, "")
        assert "repaired" in mended.out
        assert len(stored(elasticsearch, "audit-command")) == 9

    def test_a_run_of_which_nothing_is_there(self, log: Path, ask: Callable[..., Outcome]) -> None:
        done = ask("audit", str(log.parent), "--run", "no-such")
        assert done.code == 1
        assert done.err == (
            "error: 9 lines are missing in Elasticsearch, and none is there: is it the right run (--run NAME)?\n"
        )

    def test_a_server_that_is_down_is_one_sentence(
        self, log: Path, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:1")
        done = command("audit", str(log.parent))
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: Elasticsearch at http://127.0.0.1:1 can't be reached")


@pytest.mark.usefixtures("templated")
def test_what_the_agent_sent_is_audited_alike(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "audit-agent"
    demo_logs.write(run, steps=20)
    (run / "metrics.jsonl").write_bytes(b'{"step":1,"data":{"loss":1.5}}\n{"step":2,"data":{"loss":NaN}}\n')
    lines = sum(log.read_bytes().count(b"\n") for log in run.iterdir())
    sent = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    with fluentbit.running(fluent_bit, tmp_path, sent):
        wait_for(lambda: len(stored_ids(elasticsearch, "audit-agent")) >= lines, timeout=60, what=f"{lines} documents")
    numbers = audited(run, elasticsearch).numbers()
    assert (numbers["lines"], numbers["indexed"], numbers["in_two_days"]) == (lines, lines, 0)
    assert numbers["flagged"]["nan"] >= 1
    for event_id, index in list(stored_ids(elasticsearch, "audit-agent").items())[::100]:
        elasticsearch.delete(index=index, id=event_id)
    assert audited(run, elasticsearch).missing == -(-lines // 100)
    assert audited(run, elasticsearch, repair=True).numbers() == numbers


def stored_ids(client: Elasticsearch, run: str) -> dict[str, str]:
    client.indices.refresh(index="verl-*")
    query = {"term": {"run_id": run}}
    hits = client.search(index="verl-*", query=query, size=10_000, source=False)["hits"]["hits"]
    return {hit["_id"]: hit["_index"] for hit in hits}
