"""Loading files: which are read and how, against a real server; failures of the server by stand-ins."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import ApiError, Elasticsearch

from tests.stand_in import DISK_FULL, bulk_answer, stand_in
from verl_ingest.errors import InputError, KitError
from verl_ingest.load import files, patience, pipeline, reader, shipper
from verl_ingest.load.files import LogFile
from verl_ingest.load.pipeline import Summary
from verl_ingest.load.reader import Lines, Unfinished
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.normalise.lua_settings import LINE_BYTES
from verl_ingest.settings import Settings

SETTINGS = Settings()


def line(step: int, **fields: Any) -> bytes:
    moment = 1_772_380_800_000_000_000 + step * 1_000_000_000
    return json.dumps({"step": step, "rank": 0, "loss": 0.5, "timestamp_ns": moment, **fields}).encode() + b"\n"


def load(path: Path, client: Elasticsearch, **options: Any) -> Summary:
    found = files.discover([path], Normaliser(SETTINGS), run=options.pop("run", None))
    summary = pipeline.load(found.logs, client, SETTINGS, **options)
    client.indices.refresh(index="verl-*")
    return summary


def stored(client: Elasticsearch, run: str) -> list[dict[str, Any]]:
    hits = client.search(index="verl-*", query={"term": {"run_id": run}}, size=10_000)["hits"]["hits"]
    return [{"_index": hit["_index"], **hit["_source"]} for hit in hits]


def parts(path: Path, *, final: bool = False) -> list[Lines | Unfinished]:
    stat = path.stat()
    return list(reader.read(LogFile(path, "r", path.name, stat.st_size, stat.st_mtime_ns), final=final))


@pytest.mark.usefixtures("templated")
class TestLoading:
    def test_twice_leaves_the_documents_as_they_are(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        folder = tmp_path / "load-twice"
        (folder / "rollout").mkdir(parents=True)
        (folder / "verl_actor_rank0.jsonl").write_bytes(b"".join(line(step) for step in range(100)) + b"\nnot json\n")
        (folder / "metrics.jsonl").write_bytes(b'{"step":1,"data":{"loss":null,"kl":0.1}}\n')
        (folder / "rollout" / "1.jsonl").write_bytes(b'{"input":"a","output":"b","score":1.0,"step":1}\n')
        first = load(folder, elasticsearch)
        assert (first.lines, first.documents, first.created, first.existing) == (104, 103, 103, 0)
        assert dict(first.dropped) == {"empty": 1}
        assert dict(first.flags) == {"unparsed": 1, "null": 1}
        assert first.complete
        before = stored(elasticsearch, "load-twice")
        assert len(before) == 103
        second = load(folder, elasticsearch)
        assert (second.created, second.existing) == (0, 103)
        assert sorted(stored(elasticsearch, "load-twice"), key=str) == sorted(before, key=str)

    def test_a_line_without_a_time_stays_in_the_index_it_has(
        self, elasticsearch: Elasticsearch, tmp_path: Path
    ) -> None:
        log = tmp_path / "load-undated" / "metrics.jsonl"
        log.parent.mkdir()
        log.write_bytes(b'{"step":1,"data":{"loss":1.5}}\n')
        os.utime(log, (1_772_380_800, 1_772_380_800))
        load(log, elasticsearch)
        os.utime(log, (1_772_480_800, 1_772_480_800))  # copied a day later
        assert load(log, elasticsearch).existing == 1
        (document,) = stored(elasticsearch, "load-undated")
        assert document["_index"] == "verl-2026.03.01"
        assert document["time_source"] == "estimated"

    def test_what_is_added_to_a_file_is_loaded_by_the_next_load(
        self, elasticsearch: Elasticsearch, tmp_path: Path
    ) -> None:
        log = tmp_path / "load-grows" / "rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(line(1) + line(2)[:30])
        first = load(log, elasticsearch)
        assert (first.documents, first.unfinished) == (1, 1)
        log.write_bytes(line(1) + line(2))
        second = load(log, elasticsearch)
        assert (second.created, second.existing, second.unfinished) == (1, 1, 0)

    def test_a_rotated_and_compressed_file_gives_the_same_ids(
        self, elasticsearch: Elasticsearch, tmp_path: Path
    ) -> None:
        log = tmp_path / "load-rotated" / "verl_actor_rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(line(1) + line(2))
        load(log.parent, elasticsearch)
        with gzip.open(log.with_name("verl_actor_rank0.jsonl.1.gz"), "wb") as rotated:
            rotated.write(log.read_bytes())
        log.unlink()
        assert load(log.parent, elasticsearch).existing == 2

    def test_a_name_replaces_the_folders(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "folder" / "rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(line(1))
        load(log, elasticsearch, run="r'17 #a!b/中")
        (document,) = stored(elasticsearch, "r'17 #a!b/中")
        assert document["step_key"] == "r'17 #a!b/中|1"

    def test_lines_that_logs_really_hold_are_all_taken(self, elasticsearch: Elasticsearch, tmp_path: Path) -> None:
        log = tmp_path / "load-hostile" / "rank0.jsonl"
        log.parent.mkdir()
        wide = {f"m{number}": number for number in range(1_050)}
        lines = [
            line(1, **wide),
            line(2, text="长" * 11_000),
            line(3, **{f"text{number}": "x" for number in range(1_050)}),
            line(4, loss=float("nan"), big=3.5e38, huge=2**70),
            line(5, deep=json.loads('{"a":' * 40 + "1" + "}" * 40)),
            line(6, **{"timing(s)/gen": 1, "a..b": 2, ".": 3, " x": 4, "中": 5, "a.b": 6, "x.": 7, ".y": 8, "*": 9}),
            b'{"step":{"a":1},"rank":"x","metrics":7,"host":8,"extra":9,"flags":{"b":1},"_id":1,"run_id":{}}\n',
            b'{"event_id":"x","@timestamp":"never","kind":[1],"sample.score":"y","anomaly.rule":1,"":"","  ":0}\n',
            b"x" * 40_000 + b"\n",
            bytes(range(1, 10)) + bytes(range(11, 256)) + b"\n",
        ]
        log.write_bytes(b"".join(lines))
        summary = load(log, elasticsearch)
        assert summary.complete
        assert (summary.documents, summary.created) == (len(lines), len(lines))

    def test_the_summary_is_json_for_programs(
        self, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
    ) -> None:
        log = tmp_path / "load-json" / "rank0.jsonl"
        log.parent.mkdir()
        log.write_bytes(line(1) + line(2, kl=float("nan")) + b"\n")
        command = [sys.executable, "-m", "verl_ingest", "load", str(log), "--json"]
        environment = os.environ | {"ELASTICSEARCH_URL": elasticsearch_url}
        done = subprocess.run(command, env=environment, capture_output=True, check=True)
        summary = json.loads(done.stdout)
        assert (summary["lines"], summary["created"], summary["flags"], summary["dropped"]) == (
            3,
            2,
            {"nan": 1},
            {"empty": 1},
        )


class TestReading:
    def test_blocks_are_whole_lines_at_their_offsets(self, tmp_path: Path) -> None:
        log = tmp_path / "a.jsonl"
        text = b"".join(b"x" * (number % 300) + b"\n" for number in range(20_000))
        log.write_bytes(text)
        found = parts(log)
        assert len(found) > 2
        assert b"".join(part.data for part in found) == text  # type: ignore[union-attr]
        assert all(text[part.offset :].startswith(part.data) for part in found)  # type: ignore[union-attr]

    def test_a_line_without_an_end_is_left_alone_unless_the_run_has_ended(self, tmp_path: Path) -> None:
        log = tmp_path / "a.jsonl"
        log.write_bytes(b"one\ntwo")
        assert parts(log) == [Lines(b"one\n", 0, 4), Unfinished(4, 3)]
        assert parts(log, final=True) == [Lines(b"one\n", 0, 4), Lines(b"two\n", 4, 3)]

    @pytest.mark.parametrize("length", [LINE_BYTES - 1, LINE_BYTES + 1, 3 * LINE_BYTES])
    def test_a_long_line_is_cut_and_the_next_one_keeps_its_offset(self, tmp_path: Path, length: int) -> None:
        log = tmp_path / "a.jsonl"
        log.write_bytes(b"one\n" + b"x" * length + b"\nthree\n")
        lines = [
            (part.offset + start, text)
            for part in parts(log)
            for start, text in _lines(part.data)  # type: ignore[union-attr]
        ]
        assert [offset for offset, _ in lines] == [0, 4, 4 + length + 1]
        # Cut where it is seen to be too long before its end is; else the normaliser cuts it.
        assert [len(text) for _, text in lines] == [3, LINE_BYTES if length > 2 * LINE_BYTES else length, 5]

    def test_a_long_line_without_an_end_is_unfinished(self, tmp_path: Path) -> None:
        log = tmp_path / "a.jsonl"
        log.write_bytes(b"one\n" + b"x" * (2 * LINE_BYTES))
        assert parts(log) == [Lines(b"one\n", 0, 4), Unfinished(4, 2 * LINE_BYTES)]
        assert [part.read for part in parts(log, final=True)] == [4, 2 * LINE_BYTES]


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    for text in data.split(b"\n")[:-1]:
        yield start, text
        start += len(text) + 1


class TestBadInput:
    def discover(self, path: Path) -> files.Found:
        return files.discover([path], Normaliser(SETTINGS))

    def test_a_missing_path(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"no such file or folder; give the folder of a run or a log file\.$"):
            self.discover(tmp_path / "nowhere")

    def test_a_folder_without_logs(self, tmp_path: Path) -> None:
        (tmp_path / "model.pt").write_bytes(b"x")
        with pytest.raises(InputError, match="no log file in this folder"):
            self.discover(tmp_path)

    def test_an_empty_file_is_no_lines(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.jsonl").touch()
        (log,) = self.discover(tmp_path).logs
        assert parts(log.path) == []

    def test_a_binary_file(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.jsonl").write_bytes(b"PK\3\4\0\0\0" * 100)
        with pytest.raises(InputError, match="binary file, not a log; leave it out"):
            parts(tmp_path / "rank0.jsonl")

    def test_a_log_with_a_hole_is_still_a_log(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.jsonl").write_bytes(line(1) + b"\0" * 4096 + line(2))
        assert [part.read for part in parts(tmp_path / "rank0.jsonl")] == [len(line(1)) + 4096 + len(line(2))]

    def test_a_damaged_compressed_file(self, tmp_path: Path) -> None:
        log = tmp_path / "rank0.jsonl.gz"
        log.write_bytes(gzip.compress(line(1) * 1000)[:60])
        with pytest.raises(InputError, match=r"rank0\.jsonl\.gz: the compressed file is damaged"):
            parts(log)

    def test_what_stands_before_the_damage_is_taken(self, tmp_path: Path) -> None:
        log = tmp_path / "rank0.jsonl.gz"
        text = b"".join(line(step, note=os.urandom(20).hex()) for step in range(1_000))
        log.write_bytes(gzip.compress(text)[:20_000])
        stat, taken = log.stat(), b""
        with pytest.raises(InputError, match="only what is before that is taken"):
            for part in reader.read(LogFile(log, "r", log.name, stat.st_size, stat.st_mtime_ns), final=False):
                taken += part.data  # type: ignore[union-attr]
        assert len(taken) > 10_000
        assert text.startswith(taken)

    def test_a_folder_of_several_runs_is_not_taken_for_one(self, tmp_path: Path) -> None:
        for run in ("a", "b"):
            (tmp_path / run / "rollout").mkdir(parents=True)
            (tmp_path / run / "rollout" / "1.jsonl").write_bytes(line(1))
            (tmp_path / run / "console.log").write_bytes(b"x\n")
        with pytest.raises(InputError, match=r"this holds several runs \(a, b\), and a folder is loaded as one"):
            self.discover(tmp_path)
        assert len(files.discover([tmp_path], Normaliser(SETTINGS), run="both").logs) == 4
        assert {log.run_id for log in self.discover(tmp_path / "a").logs} == {"a"}

    def test_dumps_of_equal_names_are_one_runs(self, tmp_path: Path) -> None:
        for folder in ("rollout", "val"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "1.jsonl").write_bytes(line(1))
        assert len(self.discover(tmp_path).logs) == 2

    def test_a_few_odd_bytes_do_not_make_a_log_binary(self, tmp_path: Path) -> None:
        log = tmp_path / "console.log"
        log.write_bytes(b"a line of text that a process printed before it died\n\xff\xfe\0x\n")
        assert len(self.discover(tmp_path).logs) == 1
        assert len(parts(log)) == 1

    def test_a_file_that_goes_away_is_named_and_the_others_are_loaded(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.jsonl").write_bytes(line(1))
        (tmp_path / "rank1.jsonl").write_bytes(line(1))
        found = self.discover(tmp_path)
        (tmp_path / "rank0.jsonl").unlink()
        with stand_in([bulk_answer(201)]) as client:
            summary = pipeline.load(found.logs, client, SETTINGS)
        assert summary.created == 1
        assert not summary.complete
        assert len(summary.unreadable) == 1
        assert "rank0.jsonl: the file can't be read: No such file or directory." in summary.unreadable[0]

    def test_a_link_that_leads_nowhere_is_named_and_the_others_are_loaded(self, tmp_path: Path) -> None:
        (tmp_path / "rank0.jsonl").write_bytes(line(1))
        (tmp_path / "broken.jsonl").symlink_to("/nope")
        (tmp_path / "broken.log").symlink_to("/nope")
        found = self.discover(tmp_path)
        with stand_in([bulk_answer(201)]) as client:
            summary = pipeline.load(found.logs, client, SETTINGS)
        assert (summary.files, summary.created) == (1, 1)
        assert sorted(summary.unreadable) == [
            f"{tmp_path}/{name}: the file can't be read: No such file or directory."
            for name in ("broken.jsonl", "broken.log")
        ]


class TestServerFailures:
    @pytest.fixture
    def log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFile:
        monkeypatch.setattr(shipper, "_FIRST_WAIT_S", 0.01)
        path = tmp_path / "rank0.jsonl"
        path.write_bytes(line(1) + line(2) + line(3))
        return LogFile(path, "r", path.name, path.stat().st_size, 0)

    def test_only_the_items_that_the_server_was_too_busy_for_are_sent_again(self, log: LogFile) -> None:
        server = stand_in([bulk_answer(201, 429, 200), bulk_answer(429), bulk_answer(201)])
        with server as client:
            summary = pipeline.load([log], client, SETTINGS)
        assert (summary.created, summary.existing, dict(summary.refused)) == (2, 1, {})
        assert [body.count(b"\n") for body in server.bodies] == [6, 2, 2]
        assert b'"step":2' in server.bodies[1]
        assert server.bodies[1] == server.bodies[2]

    def test_a_whole_request_that_comes_too_early_is_sent_again(self, log: LogFile) -> None:
        server = stand_in([(429, {}), (503, {}), bulk_answer(201, 201, 201)])
        with server as client:
            assert pipeline.load([log], client, SETTINGS).created == 3
        assert len(set(server.bodies)) == 1

    def test_a_refused_document_is_counted_by_its_reason(self, log: LogFile) -> None:
        with stand_in([bulk_answer(201, 400, 201)]) as client:
            summary = pipeline.load([log], client, SETTINGS)
        assert dict(summary.refused) == {"document_parsing_exception: no": 1}
        assert not summary.complete

    def test_a_refused_request_ends_the_load(self, log: LogFile) -> None:
        with stand_in([(403, {"error": {"type": "security_exception", "reason": "no"}})]) as client:
            with pytest.raises(ApiError) as caught:
                pipeline.load([log], client, SETTINGS)
            assert caught.value.status_code == 403

    def test_a_server_that_stays_busy_ends_the_load(self, log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(patience, "PATIENCE_S", 0.05)
        with (
            stand_in([bulk_answer(429, 429, 429)] * 20) as client,
            pytest.raises(KitError, match=r"too busy.*run the same load again later"),
        ):
            pipeline.load([log], client, SETTINGS)

    def test_a_full_disk_ends_the_load_at_once(self, log: LogFile) -> None:
        with (
            stand_in([bulk_answer(DISK_FULL, DISK_FULL, DISK_FULL)]) as client,
            pytest.raises(KitError, match="disk of Elasticsearch is too full"),
        ):
            pipeline.load([log], client, SETTINGS)
