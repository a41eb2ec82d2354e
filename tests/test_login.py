"""The login of the agents where the secured test server can't show it: roles over the API, security that is off."""

from pathlib import Path

import pytest

from tests.stand_ins.security import Security
from verl_ingest.checks import login
from verl_ingest.checks.check import Check
from verl_ingest.index import roles
from verl_ingest.settings import Settings

LACKS = "To write records agent lacks auto_configure on verl-* and index on verl-*."


@pytest.fixture(autouse=True)
def without_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment names would win over the stand-in."""
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)


def check(url: str, folder: Path, **agent: str) -> list[Check]:
    (folder / "secret").write_text("hush")
    settings = Settings(elasticsearch_url=url, agent=agent, deploy={"secret_file": folder / "secret"})
    return list(login.check(settings))


def test_before_its_role_is_there_a_user_is_no_obstacle(tmp_path: Path) -> None:
    with Security() as server:
        server.has_all = False
        (found,) = check(server.url, tmp_path, username="agent")
        assert (found.verdict, found.found) == ("watch", f"{LACKS} The role verl_writer comes with this deployment.")
        (key,) = check(server.url, tmp_path)  # which has its privileges in itself
        assert key.verdict == "wrong"
        server.roles["verl_writer"] = {**roles.BODIES["verl_writer"], "metadata": {}}
        (found,) = check(server.url, tmp_path, username="agent")
        assert (found.verdict, found.found) == ("wrong", LACKS)


def test_who_deploys_must_be_able_to_bring_the_role(tmp_path: Path) -> None:
    with Security() as server:
        server.has_all, server.cluster = False, {"read_security"}
        (found,) = check(server.url, tmp_path, username="agent")
        assert found.verdict == "wrong"


@pytest.mark.server
def test_without_security_no_login_is_needed(elasticsearch_url: str, tmp_path: Path) -> None:
    assert check(elasticsearch_url, tmp_path, username="agent") == []
