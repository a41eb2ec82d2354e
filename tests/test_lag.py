"""How far the agent is behind: each source of numbers by itself, what they mean, and the command without any."""

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch
from rich.console import Console

from tests import fluentbit
from tests.test_cli import run
from tests.waiting import wait_for
from verl_ingest.cli import terminal
from verl_ingest.errors import InputError, KitError
from verl_ingest.lag import collect, metrics, newest, offsets, waiting
from verl_ingest.lag.facts import Agent, Facts, Newest, Tailed, Waiting
from verl_ingest.lag.verdict import Limits, problems
from verl_ingest.load import files, pipeline
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings
from verl_ingest.show import lag as show

NOW = 1_800_000_000.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    return fluentbit.settings_for(tmp_path / "runs", tmp_path / "state")


def log(settings: Settings, name: str, text: bytes, *, idle_s: float = 0) -> Path:
    path = Path(settings.agent.state).parent / "runs" / "r" / name
    path.write_bytes(text)
    os.utime(path, (NOW - idle_s, NOW - idle_s))
    return path


def save(settings: Settings, offsets: dict[Path, int], *, wal: bool = True) -> sqlite3.Connection:
    """Write the offsets as Fluent Bit does; the connection is the running agent's."""
    connection = sqlite3.connect(Path(settings.agent.state, "rank.db"))
    connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
    connection.execute("CREATE TABLE in_tail_files (id INTEGER PRIMARY KEY, name TEXT, offset INTEGER, inode INTEGER)")
    for path, offset in offsets.items():
        row = (str(path), offset, path.stat().st_ino)
        connection.execute("INSERT INTO in_tail_files (name, offset, inode) VALUES (?, ?, ?)", row)
    connection.commit()
    return connection


class TestOffsets:
    def unread(self, settings: Settings) -> dict[str, int]:
        return {Path(file.path).name: file.unread for file in offsets.read(settings, now=NOW) if file.unread}

    @pytest.mark.parametrize("running", [True, False])
    def test_what_is_on_disk_behind_the_offset_is_unread(self, settings: Settings, running: bool) -> None:
        done = log(settings, "rank0.jsonl", b"1234\n" * 10)
        behind = log(settings, "rank1.jsonl", b"1234\n" * 10, idle_s=40)
        connection = save(settings, {done: 50, behind: 20})
        if not running:
            connection.close()
        assert self.unread(settings) == {"rank1.jsonl": 30}
        (found,) = (file for file in offsets.read(settings, now=NOW) if file.unread)
        assert found == Tailed(str(behind), "rank", 50, 20, 30, 40)
        connection.close()

    def test_a_file_that_the_agent_does_not_know_is_unread_from_its_start(self, settings: Settings) -> None:
        log(settings, "rank0.jsonl", b"1234\n" * 10)
        assert [(file.offset, file.unread) for file in offsets.read(settings, now=NOW)] == [(None, 50)]

    def test_a_last_line_without_an_end_is_not_unread(self, settings: Settings) -> None:
        half = log(settings, "rank0.jsonl", b"1234\n" + b"x" * 200_000)
        rest = log(settings, "rank1.jsonl", b"1234\n" * 2 + b"x" * 200_000)
        save(settings, {half: 5, rest: 5}).close()
        assert self.unread(settings) == {"rank1.jsonl": 5}

    def test_a_rewritten_file_is_unread_from_its_start(self, settings: Settings) -> None:
        path = log(settings, "rank0.jsonl", b"1234\n")
        save(settings, {path: 50}).close()
        assert self.unread(settings) == {"rank0.jsonl": 5}

    def test_a_rotated_file_keeps_its_offset(self, settings: Settings) -> None:
        path = log(settings, "rank0.jsonl", b"1234\n" * 10)
        save(settings, {path: 40}).close()
        path.rename(path.with_name("rank0.jsonl.1"))
        log(settings, "rank0.jsonl", b"")
        assert self.unread(settings) == {"rank0.jsonl.1": 10}

    def test_no_folder(self, settings: Settings) -> None:
        Path(settings.agent.state).rmdir()
        with pytest.raises(InputError, match=r"no such folder; start the agent, or set agent\.state"):
            offsets.read(settings, now=NOW)

    def test_a_folder_of_another_user(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may read all
        with pytest.raises(InputError, match="can't be read; run this as the agent's user"):
            offsets.read(settings, now=NOW)

    def test_a_database_that_is_none(self, settings: Settings) -> None:
        Path(settings.agent.state, "rank.db").write_bytes(b"no database" * 100)
        with pytest.raises(InputError, match=r"rank\.db: the agent's offsets can't be read \(file is not a database\)"):
            offsets.read(settings, now=NOW)


class TestWaiting:
    def test_chunks_are_summed_by_input(self, settings: Settings) -> None:
        storage = Path(settings.agent.state, "storage")
        for name, size in {
            "tail.0/1-1799999700.1.flb": 100,
            "tail.0/1-1799999990.2.flb": 50,
            "tail.9/1-1.1.flb": 1,
        }.items():
            (storage / name).parent.mkdir(parents=True, exist_ok=True)
            (storage / name).write_bytes(b"x" * size)
        (storage / "tail.1").mkdir()
        (storage / "rejected").mkdir()
        found = waiting.read(settings, now=NOW)
        assert found[0] == Waiting("rank", "records", 2, 150, 300)
        assert [each.input for each in found] == ["rank", "tail.9"]  # of a former configuration

    def test_an_agent_that_never_ran(self, settings: Settings) -> None:
        assert waiting.read(settings, now=NOW) == []


class TestMetrics:
    TEXT = """\
2026-11-29T23:24:26.252538227Z fluentbit_uptime{hostname="vm"} = 26
2026-11-29T23:24:26.252546903Z fluentbit_storage_chunks = 2
2026-11-29T23:24:26.252546903Z fluentbit_storage_fs_chunks = 2
2026-11-29T23:24:23.251253035Z fluentbit_input_storage_chunks{name="rank"} = 2
2026-11-29T23:24:26.252538227Z fluentbit_build_info{hostname="vm",version="5.1.1",os="linux"} = 1795994640
2026-11-29T23:24:00.656757641Z fluentbit_input_long_line_truncated_total{name="rank"} = 2
2026-11-29T23:24:00.656757641Z fluentbit_input_long_line_truncated_total{name="console"} = 1
2026-11-29T23:24:00.656757641Z fluentbit_input_ingestion_paused{name="rank"} = 1
2026-11-29T23:24:00.656757641Z fluentbit_input_ingestion_paused{name="console"} = 0
2026-11-29T23:24:06.252546903Z fluentbit_output_proc_records_total{name="records"} = 7
2026-11-29T23:24:04.252546903Z fluentbit_output_retries_total{name="records"} = 394
2026-11-29T23:24:00.656757641Z fluentbit_output_proc_records_total{name="samples"} = 0
2026-11-29T23:24:00.656757641Z fluentbit_output_retries_total{name="samples"} = 0
2026-11-29T23:24:00.656757641Z fluentbit_output_retries_failed_total{name="records"} = 1
2026-11-29T23:24:00.656757641Z fluentbit_output_dropped_records_total{name="records"} = 3
2026-11-29T23:24:00.656757641Z fluentbit_output_dropped_records_total{name="samples"} = 4
2026-11-29T23:24:00.656757641Z fluentbit_output_errors_total{name="records"} = 5
1970-01-01T00:00:00.000000000Z fluentbit_logger_queue_dropped_total = 0
2026-11-29T23:24:06.2Z fluentbit_output_latency_seconds{input="rank",output="records"} = { buckets = { 1=1 }, count=1 }
"""

    def test_counters_are_summed_over_inputs_and_outputs(self) -> None:
        assert metrics.parse(self.TEXT) == Agent("5.1.1", 26, 7, 7, 394, 5, 3, 2, ("rank",))

    def test_an_output_whose_newest_try_came_after_its_last_delivery_is_told(self) -> None:
        later = self.TEXT.replace(
            "24:04.252546903Z fluentbit_output_retries", "24:25.252546903Z fluentbit_output_retries"
        )
        assert metrics.parse(later).untaken_s == pytest.approx(20)
        assert metrics.parse(later).is_refused

    def test_no_agent(self, settings: Settings) -> None:
        with pytest.raises(KitError, match=r"No agent answers at 127\.0\.0\.1:\d+ \(Connection refused\); start"):
            metrics.read(settings)

    @pytest.mark.parametrize("status", [200, 404])
    def test_another_program_on_the_port(self, settings: Settings, status: int) -> None:
        with web_server(status) as port, pytest.raises(KitError, match=r"agent\.metrics_port"):
            metrics.read(
                settings.model_copy(update={"agent": settings.agent.model_copy(update={"metrics_port": port})})
            )

    def test_an_agent_that_has_just_started_is_asked_again(self, settings: Settings, monkeypatch) -> None:
        waits: list[float] = []
        monkeypatch.setattr(metrics, "sleep", waits.append)
        with web_server(404) as port, pytest.raises(KitError, match="it answers 404"):
            agent = settings.agent.model_copy(update={"metrics_port": port})
            metrics.read(settings.model_copy(update={"agent": agent}))
        assert waits == list(metrics.STARTS_S)

    def test_a_real_agent_that_is_refused_after_it_delivered(self, tmp_path: Path, fluent_bit: str) -> None:
        """Such as one whose key was revoked."""
        server = web_server(200)
        with server as port:
            settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=f"http://127.0.0.1:{port}")
            log = tmp_path / "runs" / "r" / "rank0.jsonl"
            log.parent.mkdir(parents=True)
            log.write_text('{"rank": 0, "step": 1, "loss": 0.5}\n')
            with fluentbit.running(fluent_bit, tmp_path / "agent", settings) as agent:
                wait_for(lambda: metrics.read(settings).delivered, timeout=60, what=f"a delivery\n{agent.tail()}")
                assert not metrics.read(settings).is_refused
                server.status = 401
                with log.open("a") as lines:
                    lines.write('{"rank": 0, "step": 2, "loss": 0.5}\n')
                wait_for(lambda: metrics.read(settings).is_refused, timeout=60, what=f"a refusal\n{agent.tail()}")
                server.status = 200
                wait_for(lambda: metrics.read(settings).untaken_s == 0, timeout=60, what=f"an end\n{agent.tail()}")


class web_server:
    """Something else that speaks HTTP; what is sent it takes with 200 as Elasticsearch does, else refuses."""

    def __init__(self, status: int) -> None:
        self.status = status
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.end_headers()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(b'{"errors":false,"items":[]}')

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> int:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self.server.server_port

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.usefixtures("templated")
def test_the_newest_record_of_each_run_and_host(elasticsearch: Elasticsearch, tmp_path: Path) -> None:
    for name, ages in {"lag-late": (("", 300), ("a", 100), ("a", 200)), "lag-prompt": (("b", 1),)}.items():
        path = tmp_path / name / "rank0.jsonl"
        path.parent.mkdir()
        with path.open("w") as lines:
            for host, age in ages:
                moment = {"timestamp_ns": int((NOW - age) * 1e9)}
                record = {"step": 1, "loss": 0.5, **moment, **({"hostname": host} if host else {})}
                lines.write(json.dumps(record) + "\n")
        pipeline.load(files.discover([path.parent], Normaliser(Settings())).logs, elasticsearch, Settings())
    elasticsearch.indices.refresh(index="verl-*")
    found = newest.read(elasticsearch, ["lag-late", "lag-prompt", "lag-unknown"], now=NOW)
    assert found == [Newest("lag-late", "", 300), Newest("lag-late", "a", 100), Newest("lag-prompt", "b", 1)]
    assert newest.read(elasticsearch, [], now=NOW) == []


AGENT = Agent("5.1.1", uptime_s=7_200, delivered=9, dropped=0, retries=0, errors=0, truncated=0, chunks=0, paused=())
READ = Tailed("/a", "rank", 50, 50, 0, 900)
FINE = Facts(buffer_limit=5_000_000_000, files=[READ], waiting=[], agent=AGENT, newest=[], troubles=[])
BEHIND = Tailed("/b", "rank", 2_000_000_000, 800_000_000, 1_200_000_000, 40)
HELD = Waiting("rank", "records", 60, 120_000_000, 300)


class TestVerdict:
    def test_fine(self) -> None:
        assert problems(FINE, Limits()) == []

    def test_a_little_that_is_young_is_no_lag(self) -> None:
        young = replace(FINE, files=[replace(BEHIND, unread=10_000)], waiting=[replace(HELD, bytes=2_000, oldest_s=1)])
        assert problems(young, Limits()) == []

    @pytest.mark.parametrize(
        ("facts", "sentence"),
        [
            (replace(FINE, files=[READ, BEHIND]), "Behind by 1.2 GB in 1 file, unread for 40 s or longer."),
            (
                replace(FINE, files=[replace(BEHIND, unread=5, idle_s=61), replace(BEHIND, unread=5, offset=None)]),
                "Behind by 10 bytes in 2 files, unread for 61 s or longer; "
                "1 of them the agent does not know yet: may it read them?",
            ),
            (
                replace(FINE, waiting=[HELD], agent=replace(AGENT, retries=1)),
                "Elasticsearch refuses or is away: 120.0 MB of 5.0 GB of records wait, the oldest for 5 min.",
            ),
            (
                replace(FINE, waiting=[HELD], newest=None),
                "Elasticsearch refuses or is away: 120.0 MB of 5.0 GB of records wait, the oldest for 5 min.",
            ),
            (
                replace(
                    FINE,
                    waiting=[replace(HELD, bytes=2_000, oldest_s=1)],
                    agent=replace(AGENT, uptime_s=20, delivered=0, retries=1, chunks=1),
                ),
                "Elasticsearch refuses or is away: 2.0 kB of 5.0 GB of records wait, the oldest for 1.0 s, "
                "and nothing was delivered since the agent's start 20 s ago; see its log.",
            ),
            (
                replace(
                    FINE,
                    waiting=[replace(HELD, bytes=2_000, oldest_s=1)],
                    agent=replace(AGENT, retries=1, chunks=1, untaken_s=300),
                ),
                "Elasticsearch refuses or is away: 2.0 kB of 5.0 GB of records wait, the oldest for 1.0 s, "
                "and nothing was delivered for 5 min; see its log.",
            ),
            (
                replace(FINE, waiting=[HELD]),
                "Elasticsearch is slow: 120.0 MB of 5.0 GB of records wait, the oldest for 5 min.",
            ),
            (
                replace(FINE, waiting=[replace(HELD, bytes=1, oldest_s=61)], agent=None),
                "Nobody sends: 1 byte of 5.0 GB of records wait, the oldest for 61 s.",
            ),
            (
                replace(FINE, agent=replace(AGENT, dropped=7)),
                "The agent dropped 7 records since its start 2 h ago, as agent.buffer_limit was reached; "
                "`verl-ingest audit --repair` ships what the log files still have.",
            ),
            (
                replace(FINE, files=[replace(BEHIND, unread=1)], agent=replace(AGENT, paused=("console", "rank"))),
                "The agent does not go on reading rank, though nothing of it waits; restart the agent.",
            ),
            (replace(FINE, troubles=["No agent."]), "No agent."),
        ],
    )
    def test_a_problem_is_a_sentence(self, facts: Facts, sentence: str) -> None:
        assert problems(facts, Limits()) == [sentence]

    def test_the_limit_is_in_bytes(self) -> None:
        assert problems(replace(FINE, files=[BEHIND]), Limits(bytes=1_200_000_000)) == []
        assert problems(replace(FINE, files=[BEHIND]), Limits(bytes=1_199_999_999)) != []


def heading(facts: Facts) -> str:
    console = Console(width=100, record=True)
    console.print(show.render(facts, problems(facts, Limits())))
    return console.export_text().splitlines()[0]


def test_elasticsearch_takes_what_is_sent_only_where_something_was_delivered() -> None:
    assert heading(FINE) == "Fine: the logs are read, and Elasticsearch takes what is sent."
    nothing_yet = replace(FINE, agent=replace(AGENT, delivered=0))
    under_way = replace(FINE, waiting=[replace(HELD, bytes=2_000, oldest_s=1)])
    for facts in (nothing_yet, under_way, replace(FINE, agent=None)):
        assert heading(facts) == "Fine: the logs are read, and nothing waits for long."


class TestCommand:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Path]:
        (tmp_path / "logs" / "r").mkdir(parents=True)
        (tmp_path / "settings.yml").write_text(
            f"elasticsearch_url: http://127.0.0.1:9\n"
            f"paths: {{rank: ['{tmp_path}/logs/{{run}}/*.jsonl'], file_logger: [], console: [], rollout: []}}\n"
            f"agent: {{state: {tmp_path}/state, metrics_port: 9}}\n"
        )
        yield tmp_path

    def test_each_that_does_not_answer_is_a_sentence(self, folder: Path) -> None:
        done = run("lag", folder=folder)
        text = " ".join(done.stdout.split())
        assert (done.returncode, done.stderr) == (1, "")
        assert f"{folder}/state: no such folder; start the agent, or set agent.state" in text
        assert "No agent answers at 127.0.0.1:9 (Connection refused); start Fluent Bit on this node" in text
        assert "Elasticsearch at http://127.0.0.1:9 can't be reached (Connection refused); start it" in text
        assert text.count("no such folder") == 1

    def test_a_server_that_hangs_is_waited_for_shortly(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(collect, "TIMEOUT_S", 1)
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            url = f"http://127.0.0.1:{silent.getsockname()[1]}"
            monkeypatch.setenv("ELASTICSEARCH_URL", url)
            facts = collect.collect(Settings(agent={"state": str(tmp_path)}))
        assert (
            f"Elasticsearch at {url} did not answer in 1 s; see its log, or try again when it is less busy."
            in facts.troubles
        )

    def test_what_is_known_is_shown_all_the_same(self, folder: Path) -> None:
        (folder / "state" / "storage" / "tail.0").mkdir(parents=True)
        (folder / "state" / "storage" / "tail.0" / f"7-{int(time.time()) - 90}.5.flb").write_bytes(b"x" * 3_000_000)
        (folder / "logs" / "r" / "rank0.jsonl").write_bytes(b"1234\n")
        done = run("lag", "--json", "--limit", "1", folder=folder)
        answer = json.loads(done.stdout)
        assert (done.returncode, done.stderr, answer["fine"]) == (1, "", False)
        assert (answer["unread_bytes"], answer["waiting_bytes"], answer["agent"]) == (5, 3_000_000, None)
        assert answer["problems"][2].startswith("Nobody sends: 3.0 MB of 5.0 GB of records wait")
        text = run("lag", folder=folder).stdout
        assert "0 files read to the end, 1 not" in text
        assert "5 bytes" in text
        assert f"{folder}/logs/r/rank0.jsonl" in text.splitlines()

    def test_a_path_is_whole_on_a_narrow_terminal(self, capsys: pytest.CaptureFixture, monkeypatch) -> None:
        monkeypatch.setattr(terminal, "console", lambda: Console(width=40, force_terminal=True, color_system=None))
        long = f"/runs/{'x' * 60}/rank0.jsonl"
        terminal.show(show.render(replace(FINE, files=[replace(BEHIND, path=long)]), [f"{long}: it can't be read."]))
        rows = [row.rstrip() for row in capsys.readouterr().out.splitlines()]
        assert long in rows
        assert any(row.startswith(f"{long}:") for row in rows)
