"""A load while the server is away or slow: it waits and says so, and takes no more memory."""

import json
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests.stand_in import bulk_answer, stand_in
from tests.waiting import wait_for
from verl_ingest.edge.trial import free_port
from verl_ingest.errors import StoreError
from verl_ingest.load import patience, pipeline, shipper
from verl_ingest.load.files import LogFile
from verl_ingest.settings import Settings

SETTINGS = Settings()
LINE = b'{"step":1,"rank":0,"loss":0.5,"timestamp_ns":1772380800000000000,"text":"%b"}\n' % (b"x" * 200)
BIG_MB = 64
# The imports take 60 MB, two readers with Lua and the requests under way another 60; all of the file took 250.
MOST_MB = 160


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogFile:
    monkeypatch.setattr(shipper, "_FIRST_WAIT_S", 0.02)
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(3 * LINE)
    return LogFile(path, "r", path.name, path.stat().st_size, 0)


def test_an_outage_is_said_once_and_its_end_too(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "QUIET_S", 0.1)
    port, said, servers = free_port(), [], []

    def notice(sentence: str) -> None:
        said.append(sentence)
        if len(said) == 1:  # only now is there a server, and it is busy at first
            server = stand_in([(503, {})] * 3 + [bulk_answer(201, 201, 201)], port=port)
            servers.append(server)
            server.__enter__()

    with Elasticsearch(f"http://127.0.0.1:{port}", max_retries=0) as client:
        summary = pipeline.load([log], client, SETTINGS, notice=notice)
    servers[0].__exit__()
    assert summary.created == 3
    assert said[0] == "Elasticsearch does not answer (Connection refused); waiting, 120 s left."
    assert re.fullmatch(r"Elasticsearch answers again after \d s\.", said[1])
    assert len(said) == 2


def test_a_short_pause_is_not_worth_a_word(log: LogFile) -> None:
    said: list[str] = []
    with stand_in([(429, {}), (503, {}), bulk_answer(201, 201, 201)]) as client:
        pipeline.load([log], client, SETTINGS, notice=said.append)
    assert said == []


def test_patience_counts_from_the_first_failure_behind_the_last_success() -> None:
    """A reader may find nothing to send for minutes, as in an audit that has little to repair."""
    said: list[str] = []
    patient, now, busy = patience.Patience(said.append), time.monotonic(), StoreError("busy")
    patient.fail(busy, since=now - 100)
    patient.succeed()
    patient.fail(busy, since=now - 30)
    with pytest.raises(StoreError):
        patient.fail(busy, since=now - patience.PATIENCE_S - 1)
    assert said == [
        "Elasticsearch is too busy (HTTP 429 for single documents); waiting, 20 s left.",
        "Elasticsearch answers again after 100 s.",
        "Elasticsearch is too busy (HTTP 429 for single documents); waiting, 90 s left.",
    ]


class _Silent:
    """A server that answers no `_bulk` until `answer` is set."""

    def __enter__(self) -> "_Silent":
        self.answer, self.requests = threading.Event(), 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                documents = self.rfile.read(int(self.headers["Content-Length"])).count(b"\n") // 2
                outer.requests += 1
                outer.answer.wait(60)
                text = json.dumps(bulk_answer(*[201] * documents)[1]).encode()
                self.send_response(200)
                self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.answer.set()
        self._server.shutdown()
        self._server.server_close()


class _Still:
    """Tells when a process has read nothing for a second."""

    def __init__(self, pid: int) -> None:
        self._io, self._read, self._since = Path(f"/proc/{pid}/io"), "", time.monotonic()

    def __call__(self) -> bool:
        read = self._io.read_text().split("\n", 1)[0]
        if read != self._read:
            self._read, self._since = read, time.monotonic()
        return time.monotonic() - self._since > 1


def _peak_mb(pid: int) -> int:
    """Return the most memory that a process has had."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) // 1000


def test_a_load_takes_no_more_memory_while_the_server_does_not_answer(tmp_path: Path) -> None:
    run = tmp_path / "waiting"
    run.mkdir()
    for rank in range(2):
        (run / f"rank{rank}.jsonl").write_bytes(LINE * (BIG_MB * 500_000 // len(LINE)))
    with _Silent() as server:
        code = (
            "import sys; from pathlib import Path; from elasticsearch import Elasticsearch;"
            "from verl_ingest.load import files, pipeline; from verl_ingest.normalise.lua import Normaliser;"
            "from verl_ingest.settings import Settings; settings = Settings();"
            "logs = files.discover([Path(sys.argv[1])], Normaliser(settings)).logs;"
            "print(pipeline.load(logs, Elasticsearch(sys.argv[2]), settings).created)"
        )
        load = subprocess.Popen([sys.executable, "-c", code, str(run), server.url], stdout=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: server.requests >= shipper.SENDERS, timeout=20, what="requests")
            wait_for(_Still(load.pid), timeout=40, what="pause of the reading")
            peak = _peak_mb(load.pid)
            assert load.poll() is None
            server.answer.set()
            created = int(load.communicate(timeout=60)[0])
        finally:
            load.kill()
            load.wait()
    assert created == 2 * (BIG_MB * 500_000 // len(LINE))
    assert peak < MOST_MB
