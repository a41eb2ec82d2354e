"""Roles and keys over the security API, which the test server lacks: a stand-in that answers as the real one does."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from elasticsearch import Elasticsearch

from tests.command import Outcome
from tests.stand_ins.recording import Answer
from tests.stand_ins.security import HEADERS, Security
from verl_ingest.changes import Row
from verl_ingest.index import apply, roles

Command = Callable[..., Outcome]


@pytest.fixture
def security(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Security]:
    """A server with roles and keys, named by the environment; the working folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELASTICSEARCH_USERNAME", "tester")
    monkeypatch.setenv("ELASTICSEARCH_PASSWORD", "x")
    with Security() as server:
        monkeypatch.setenv("ELASTICSEARCH_URL", server.url)
        yield server


def bring(security: Security, *, overwrite: bool = False) -> list[Row]:
    with Elasticsearch(security.url) as client:
        rows = apply.compare(client, roles.wanted(), overwrite=overwrite)
        apply.write(client, rows)
    return rows


def states(rows: list[Row]) -> list[str]:
    return [row.state for row in rows]


def test_roles_are_created_once(security: Security):
    first = bring(security)
    assert [row.name for row in first] == ["role verl_writer", "role verl_reader", "role verl_admin"]
    assert states(first) == ["created"] * 3
    assert states(bring(security)) == ["kept"] * 3
    assert security.roles["verl_writer"]["metadata"]["managed_by"] == "verl-ingest"


def test_a_role_changed_by_hand_is_kept_until_it_may_be_overwritten(security: Security):
    bring(security)
    security.roles["verl_writer"]["run_as"] = ["someone"]
    [writer, *others] = bring(security)
    assert (writer.state, states(others)) == ("differs", ["kept"] * 2)
    assert writer.why.startswith("changed by hand")
    assert states(bring(security, overwrite=True)) == ["updated", "kept", "kept"]


def test_the_order_in_which_the_server_lists_privileges_is_no_change(security: Security):
    bring(security)
    security.roles["verl_admin"]["cluster"].reverse()
    security.roles["verl_writer"]["indices"][0]["privileges"].reverse()
    assert states(bring(security)) == ["kept"] * 3


def test_a_login_that_may_not_write_roles_is_told_how_they_get_there(security: Security):
    bring(security)
    del security.roles["verl_reader"]
    security.cluster = {"read_security"}
    with pytest.raises(roles.NotKept) as told:
        bring(security)
    assert re.fullmatch(
        r"Roles: not written after all, since the login lacks manage_security; apply as a superuser once, "
        r"or append /.*/deploy/elasticsearch/roles\.yml to the server's roles\.yml\.",
        str(told.value),
    )


def test_without_any_role_a_login_that_may_write_none_is_told_so_at_once(security: Security):
    security.cluster = {"read_security"}
    with pytest.raises(roles.NotKept, match=r"^Roles: none seen, and the login lacks manage_security to write any; "):
        apply.compare(Elasticsearch(security.url), roles.wanted())
    security.login_roles = ["verl_admin"]
    with pytest.raises(roles.NotNeeded):
        apply.compare(Elasticsearch(security.url), roles.wanted())


def test_a_login_that_may_not_see_roles_is_told_so(security: Security):
    security.cluster = set()
    with pytest.raises(roles.NotKept, match=r"^Roles: not compared, since the login lacks read_security; use one of "):
        bring(security)


@pytest.mark.parametrize(
    ("kind", "privileges", "on", "role"),
    [
        ("index", ["create_doc", "index", "write", "all"], "verl-2026.03.01", "verl_admin"),
        ("index", ["create_doc", "index", "write", "all"], "verl_kit_state", "verl_admin"),
        ("index", ["read", "all"], "verl-*,-verl-samples-*", "verl_reader"),
        ("index", ["read", "all"], None, "verl_reader"),
        ("index", ["monitor", "manage", "all"], "verl-*", "verl_admin"),
        ("cluster", ["monitor", "manage", "all"], None, "verl_reader"),
        ("cluster", ["manage_index_templates", "monitor", "all"], None, "verl_admin"),
        ("cluster", ["manage_security", "all"], None, None),
        ("index", ["read", "all"], "private", None),
    ],
)
def test_the_role_that_helps_is_named(kind: str, privileges: list[str], on: str | None, role: str | None):
    assert roles.helpful(kind, privileges, on=on) == role


def test_roles_of_the_file_refer_to_no_lines_of_each_other():
    text = roles.file()
    assert "&" not in text and yaml.safe_load(text) == roles.BODIES


def test_a_key_is_written_where_only_its_maker_reads_it(security: Security, command: Command, tmp_path: Path):
    before = os.umask(0)
    try:
        done = command("key", "verl_writer", "--days", "30")
    finally:
        os.umask(before)
    path = tmp_path / "verl_writer.key"
    assert path.read_text() == "eDE6czNjcmV0"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (done.code, done.err) == (0, "")
    until, what = re.fullmatch(
        r"verl_writer\.key has an API key of the role verl_writer, until (.*) UTC\.\n(.*)\n", done.out
    ).groups()
    left = datetime.strptime(until, "%Y-%m-%d %H:%M").replace(tzinfo=timezone.utc) - datetime.now(timezone.utc)
    assert timedelta(days=29) < left < timedelta(days=31)
    assert what == roles.BODIES["verl_writer"]["description"]
    [asked] = [request.json for request in security.requests if "api_key" in request.path]
    assert asked["role_descriptors"] == {"verl_writer": {"indices": roles.BODIES["verl_writer"]["indices"]}}


def test_a_key_is_printed_where_that_is_asked(security: Security, command: Command, tmp_path: Path):
    done = command("key", "verl_reader", "--out", "-")
    assert done.out == "eDE6czNjcmV0\n"
    assert done.err.startswith("This is an API key of the role verl_reader, until ")
    assert not list(tmp_path.iterdir())


def test_no_file_is_overwritten_and_no_key_made_in_vain(security: Security, command: Command, tmp_path: Path):
    (tmp_path / "verl_reader.key").write_text("mine")
    done = command("key", "verl_reader")
    assert (done.code, done.err) == (
        1,
        "error: verl_reader.key: the key can't be written there: File exists; choose another --out.\n",
    )
    assert (tmp_path / "verl_reader.key").read_text() == "mine"
    assert not security.requests


def test_whoever_lacks_what_the_role_has_makes_no_key(security: Security, command: Command, tmp_path: Path):
    security.has_all = False
    done = command("key", "verl_writer")
    assert done.err == (
        "error: tester has not all that the role verl_writer has, and a key can do no more than its maker; "
        "make it as a user with the role verl_admin or superuser.\n"
    )
    assert not list(tmp_path.iterdir())


def test_without_a_login_a_key_is_no_remedy(security: Security, command: Command, monkeypatch: pytest.MonkeyPatch):
    for name in ("ELASTICSEARCH_USERNAME", "ELASTICSEARCH_PASSWORD"):
        monkeypatch.delenv(name)
    error = {"type": "security_exception", "reason": "missing authentication credentials"}
    security.overrides[""] = Answer(401, {"error": error | {"root_cause": [error]}, "status": 401}, HEADERS)
    assert command("key", "verl_reader").err == (
        f"error: Elasticsearch at {security.url} wants a login to make a key; "
        "set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD.\n"
    )


def test_a_role_that_is_none_is_told_in_plain_words(command: Command):
    done = command("key", "nonsense")
    assert done.code == 2
    assert done.err.endswith("'ROLE': 'nonsense' is not one of verl_writer, verl_reader and verl_admin.\n")


def test_a_key_makes_no_key(security: Security, command: Command, monkeypatch: pytest.MonkeyPatch):
    for name in ("ELASTICSEARCH_USERNAME", "ELASTICSEARCH_PASSWORD"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("ELASTICSEARCH_API_KEY", "eDE6czNjcmV0")
    assert command("key", "verl_writer").err.startswith("error: Elasticsearch lets no API key make another; unset ")
    assert not security.requests


@pytest.mark.parametrize("role", roles.BODIES)
def test_a_server_without_security_makes_no_keys(ask: Command, role: str, tmp_path: Path):
    path = tmp_path / "key"
    done = ask("key", role, "--out", str(path))
    assert (done.code, path.exists()) == (1, False)
    assert re.fullmatch(
        r"error: The server makes no API keys \(.*\); where its security is on, make a user with the role "
        rf"{role} instead \(docs/deploy/security\.md\)\.\n",
        done.err,
    )


def test_a_server_without_security_has_no_roles(ask: Command):
    done = ask("apply", "--dry-run")
    assert (done.code, "oles" in done.out) == (0, False)
