"""The kit's roles on a real server: what a login of each can do, and what it is told otherwise."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from elasticsearch import exceptions as refused

from tests.command import Outcome
from tests.secured import LATE, OPERATOR, Secured
from tests.serving import served
from tests.test_cli import run
from tests.waiting import wait_for
from verl_ingest.cli import retention
from verl_ingest.index import roles
from verl_ingest.query.elastic import ElasticStore

RUN = "secured"
LINES = 40
DAY = "verl-2026.03.01"
pytestmark = pytest.mark.server
As = Callable[..., Outcome]


@pytest.fixture
def as_(command: Callable[..., Outcome], secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> As:
    """Run the command line as a user, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run_as(user: str, *words: str) -> Outcome:
        for name, value in secured.environment(user).items():
            monkeypatch.setenv(name, value)
        done = command(*words)
        return dataclasses.replace(done, err=done.err.replace(secured.url, "SERVER"))

    return run_as


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run: rank logs and a dump of samples."""
    folder = tmp_path_factory.mktemp("runs") / RUN
    (folder / "rollout").mkdir(parents=True)
    with (folder / "verl_actor_rank0.jsonl").open("w") as file:
        for step in range(LINES):
            time = 1_772_380_800_000_000_000 + step * 10**9
            file.write(f'{{"step": {step}, "rank": 0, "kl_divergence": 0.01, "timestamp_ns": {time}}}\n')
        file.write(f'{{"event": "checkpoint_saved", "step": 7, "rank": 0, "timestamp_ns": {time}}}\n')
    (folder / "rollout" / "7.jsonl").write_text('{"input": "2+2", "output": "4", "score": 1.0, "step": 7}\n')
    return folder


@pytest.fixture(scope="module")
def loaded(secured: Secured, logs: Path) -> str:
    """The name of the run, which an admin loaded, after `apply`."""
    for words in (["apply", "--overwrite"], ["load", str(logs), "--timezone", "Etc/UTC"]):
        done = run(*words, folder=logs, **secured.environment("verl_admin"))
        assert (done.returncode, done.stderr) == (0, "")
    return RUN


def test_an_admin_audits_repairs_and_summarises(secured: Secured, loaded: str, logs: Path, as_: As):
    with secured.client("verl_admin") as admin:
        gone = admin.search(index=DAY, query={"term": {"step": 3}}, size=1)["hits"]["hits"][0]
        admin.delete(index=DAY, id=gone["_id"], refresh=True)
    assert as_("verl_admin", "audit", str(logs)).code == 1
    repaired = as_("verl_admin", "audit", str(logs), "--repair")
    assert (repaired.code, repaired.err) == (0, "")
    summarised = as_("verl_admin", "summarize", loaded, "--rebuild")
    assert (summarised.code, summarised.err) == (0, "")
    assert f"{LINES} made again" in summarised.out


def test_a_running_server_reads_what_is_appended_to_its_file(secured: Secured):
    """As who operates it does, with the file as it is rendered; here under other names."""

    def is_known() -> bool:
        operator.security.clear_cached_roles(name=LATE)  # a look just before the server reads it hides it for good
        try:
            return bool(late.cluster.health())
        except refused.AuthorizationException:
            return False

    with secured.client(OPERATOR) as operator, secured.client(LATE) as late:
        assert not is_known()
        with secured.roles.open("a") as file:
            file.write(re.sub(r"^verl_", "late_", roles.file(), flags=re.MULTILINE))
        wait_for(is_known, timeout=120, what="reading of roles.yml by the server")


def test_an_admin_whose_roles_are_in_a_file_hears_nothing_of_them(loaded: str, as_: As):
    applied = as_("verl_admin", "apply")
    assert (applied.code, applied.err) == (0, "")
    assert "index template verl: kept\n" in applied.out
    assert "Roles:" not in applied.out  # his own is one of the kit's, from a file


def test_a_server_that_takes_no_roles_over_its_api_is_no_failure(loaded: str, as_: As):
    applied = as_(OPERATOR, "apply")
    assert applied.code == 0
    written, unseen, refusal = applied.out.partition(f"{roles.UNSEEN}\n")
    assert written.endswith("role verl_writer: created\nrole verl_reader: created\nrole verl_admin: created\n")
    assert unseen and refusal.startswith("Roles: not written after all, as the server takes none over its API (")


def test_a_reader_asks_everything(loaded: str, logs: Path, as_: As):
    for words in (
        ["runs"],
        ["step", RUN, "7"],
        ["logs", RUN],
        ["why", RUN],
        ["series", RUN, "kl_divergence"],
        ["compare", RUN, RUN],
        ["samples", RUN, "7"],
        ["share", "kl_divergence > 0", "--run", RUN],
        ["audit", str(logs)],
    ):
        done = as_("verl_reader", *words)
        assert (words, done.code, done.err) == (words, 0, "")


def test_a_reader_serves_the_pages(secured: Secured, loaded: str):
    settings = secured.settings("verl_reader")
    with secured.client("verl_reader") as reader, served(settings, ElasticStore(reader)) as get:
        assert get("/runs").status == 200
        assert get(f"/api/runs/{loaded}/steps/7").json()["step"] == 7


def test_a_reader_sees_summaries(secured: Secured, loaded: str):
    with secured.client("verl_reader") as reader:
        assert reader.count(index="verl_steps", query={"term": {"run_id": loaded}})["count"] == LINES


@pytest.mark.parametrize("index", [DAY, "verl_steps", "verl_kit_state"])
def test_a_reader_writes_and_deletes_nothing(secured: Secured, loaded: str, index: str):
    with secured.client("verl_reader") as reader:
        with pytest.raises(refused.AuthorizationException):
            reader.index(index=index, document={})
        with pytest.raises(refused.AuthorizationException):
            reader.indices.delete(index=index)


def test_a_writer_neither_reads_nor_deletes(secured: Secured, loaded: str):
    with secured.client("verl_writer") as writer:
        written = writer.index(index="verl-1999.01.02", id="x", document={"@timestamp": "1999-01-02T00:00:00Z"})
        assert written["result"] == "created"
        for request in (
            lambda: writer.get(index="verl-1999.01.02", id="x"),
            lambda: writer.search(index=DAY),
            lambda: writer.delete(index="verl-1999.01.02", id="x"),
            lambda: writer.indices.delete(index="verl-1999.01.02"),
            lambda: writer.index(index="verl_steps", document={}),
            lambda: writer.index(index="other", document={}),
            lambda: writer.indices.put_index_template(name="verl", index_patterns=["verl-*"]),
        ):
            with pytest.raises(refused.AuthorizationException):
                request()
    with secured.client("verl_admin") as admin:
        admin.indices.delete(index="verl-1999.01.02")


@pytest.mark.parametrize(
    ("user", "words", "sentence"),
    [
        (
            "verl_reader",
            ["load", "LOGS"],
            "write records; give it the role verl_admin, or grant the index privilege create_doc "
            "(for indices:data/write/bulk).",
        ),
        (
            "verl_writer",
            ["runs"],
            "read records; give it the role verl_reader, or grant the index privilege read "
            "(for indices:data/read/search).",
        ),
        (
            "verl_reader",
            ["summarize", RUN],
            "do this; give it the role verl_admin, or grant the index privilege maintenance on verl_steps* "
            "(for indices:admin/refresh).",
        ),
        (
            "verl_writer",
            ["apply"],
            "see index templates; give it the role verl_admin, or grant the cluster privilege manage_index_templates "
            "(for cluster:admin/component_template/get).",
        ),
    ],
    ids=["load", "runs", "summarize", "apply"],
)
def test_a_login_without_the_role_is_told_which(
    loaded: str, logs: Path, as_: As, user: str, words: list[str], sentence: str
):
    done = as_(user, *(str(logs) if word == "LOGS" else word for word in words))
    expected = f"error: Elasticsearch at SERVER does not let user [{user}] {sentence}\n"
    assert (done.code, done.err) == (1, expected)


def test_a_reader_makes_no_key_of_more_than_he_has(loaded: str, as_: As, tmp_path: Path):
    done = as_("verl_reader", "key", "verl_writer")
    assert done.err.startswith(
        "error: verl_reader has not all that the role verl_writer has, and a key can do no more "
    )
    done = as_("verl_reader", "key", "verl_reader")
    assert "give it the role verl_admin, or grant the cluster privilege manage_own_api_key" in done.err
    assert not list(tmp_path.iterdir())


def test_a_server_that_makes_no_keys_is_told_so(loaded: str, as_: As, tmp_path: Path):
    done = as_("verl_admin", "key", "verl_writer")
    assert done.err.startswith("error: The server makes no API keys (")
    assert not list(tmp_path.iterdir())


def test_an_admin_pins_a_run_and_deletes_old_days_others_do_neither(
    secured: Secured, loaded: str, as_: As, monkeypatch: pytest.MonkeyPatch
):
    old = "verl-2001.01.01"
    with secured.client("verl_admin") as admin:
        admin.index(index=old, document={"run_id": "other", "@timestamp": "2001-01-01"}, refresh=True)
    now = retention.now_ms
    monkeypatch.setattr(retention, "now_ms", lambda: now() + 31 * 86_400_000)
    assert as_("verl_admin", "pin", loaded).code == 0
    for words in (["pin", loaded], ["unpin", loaded], ["retention", "--days", "30"]):
        refusal = as_("verl_reader", *words)
        assert (refusal.code, refusal.out) == (1, "")
        assert "does not let user [verl_reader] " in refusal.err
        assert "; give it the role verl_admin" in refusal.err
    assert as_("verl_writer", "retention", "--days", "30").code == 1
    assert as_("verl_reader", "pins").out.splitlines()[1].startswith(loaded)
    done = as_("verl_admin", "retention", "--days", "30")
    assert (done.code, done.err) == (0, "")
    with secured.client("verl_admin") as admin:
        assert admin.indices.exists(index=DAY)
        assert not admin.indices.exists(index=old)
    assert as_("verl_admin", "unpin", loaded).code == 0
