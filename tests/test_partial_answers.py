"""Where a part of the records does not answer, nothing is counted without it: a really red shard, and every request."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from tests.audits import line
from tests.command import Outcome
from tests.secured import OPERATOR, Secured, apply_templates
from tests.stand_ins.lifecycle import WithLifecycle
from tests.stand_ins.recording import Request
from tests.waiting import wait_for
from verl_ingest.checks import records
from verl_ingest.index import client

pytestmark = pytest.mark.server

RUN = "partial"
RED = "verl-2198.01.02"


@pytest.fixture
def operator(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elasticsearch]:
    """The server's client; the environment has its login."""
    for name, value in secured.environment(OPERATOR).items():
        monkeypatch.setenv(name, value)
    with secured.client(OPERATOR) as server:
        apply_templates(server)
        yield server


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / RUN
    folder.mkdir()
    (folder / "rank0.jsonl").write_bytes(b"".join(map(line, range(9))))
    return folder


def test_an_index_without_its_shard_makes_no_line_missing(
    operator: Elasticsearch,
    secured: Secured,
    logs: Path,
    command: Callable[..., Outcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "SHARDS_WAITS_S", (0,))
    assert command("load", str(logs)).code == 0
    nowhere = {"index.routing.allocation.require._name": "no-such-node"}
    operator.indices.create(index=RED, settings=nowhere, wait_for_active_shards=0)
    try:
        wait_for(lambda: operator.cluster.health()["status"] == "red", timeout=30, what="a red index")
        audited = command("audit", str(logs))
        [looked] = records.check(secured.settings(OPERATOR), now=0)
    finally:
        operator.indices.delete(index=RED)
    assert (audited.code, audited.out) == (1, "")
    for said in (audited.err, looked.found):
        assert re.search(rf"Elasticsearch at .* can't read all of its data now \(.*\[{re.escape(RED)}\]", said)
    assert looked.verdict == "unknown"
    assert command("audit", str(logs)).code == 0


def test_every_search_of_doctor_and_audit_refuses_an_answer_in_part(
    demo: str, demo_logs: Path, elasticsearch_url: str, command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    with WithLifecycle(elasticsearch_url) as server:
        monkeypatch.setenv("ELASTICSEARCH_URL", server.url)
        for words in (["doctor"], ["audit", str(demo_logs), "--run", demo, "--full"]):
            server.requests.clear()
            command(*words)
            asked = [request for request in server.requests if is_search(request)]
            assert asked
            assert [str(request) for request in asked if may_be_partial(request)] == []


def is_search(request: Request) -> bool:
    return any(name in request.path for name in ("_search", "_msearch", "_count"))


def may_be_partial(request: Request) -> bool:
    if "_msearch" in request.path:
        headers = request.body.splitlines()[::2]
        return not all(json.loads(header).get("allow_partial_search_results") is False for header in headers)
    return "allow_partial_search_results=false" not in request.path
