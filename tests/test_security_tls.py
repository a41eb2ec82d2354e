"""Who is at the other end: certificates that are believed or not, and the login that agents get and send with."""

import dataclasses
from pathlib import Path

import pytest
import trustme

from tests import fluentbit
from tests.secured import PASSWORD, Secured, apply_templates
from tests.waiting import wait_for
from verl_ingest.checks import login
from verl_ingest.checks.check import Check
from verl_ingest.cluster import preflight, targets
from verl_ingest.index import client
from verl_ingest.install import http
from verl_ingest.lag import metrics
from verl_ingest.lag.collect import collect
from verl_ingest.lag.verdict import Limits, problems
from verl_ingest.settings import Settings

LINES = 40
pytestmark = pytest.mark.server


def sentence(settings: Settings) -> str:
    with pytest.raises(client.StoreError) as failed, client.explained(settings), client.connect(settings) as server:
        server.cluster.health()
    return str(failed.value).replace(settings.elasticsearch_url, "SERVER")


@pytest.fixture(scope="module")
def applied(secured: Secured) -> None:
    """The kit's templates, by which records that agents send are found."""
    with secured.client("verl_admin") as admin:
        apply_templates(admin)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PEM file of an authority that has signed nothing here."""
    path = tmp_path_factory.mktemp("tls") / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(path)
    return path


def test_a_certificate_of_an_unknown_authority_is_not_trusted(secured: Secured, stranger: Path):
    for authority in (None, stranger):
        told = sentence(secured.settings("verl_reader", elasticsearch_ca_certs=authority))
        assert told == (
            "The certificate of Elasticsearch at SERVER is not trusted (unable to get local issuer certificate); "
            "set elasticsearch_ca_certs to the PEM file of the authority that signed it."
        )


def test_a_certificate_for_another_name_is_not_trusted(secured: Secured):
    told = sentence(secured.settings("verl_reader", elasticsearch_url=secured.url.replace("localhost", "127.1")))
    assert told == (
        "The certificate of Elasticsearch at SERVER is for another name (Hostname mismatch, certificate is not valid "
        "for '127.1'); write its name in ELASTICSEARCH_URL."
    )


def test_http_to_a_port_that_speaks_tls_is_explained(secured: Secured):
    told = sentence(secured.settings("verl_reader", elasticsearch_url=secured.url.replace("https:", "http:")))
    assert told == (
        "Elasticsearch at SERVER closed the connection; "
        "write https:// in ELASTICSEARCH_URL if it speaks TLS, or see its log."
    )


def test_an_authority_that_the_system_trusts_needs_no_setting(secured: Secured, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.authority))
    settings = secured.settings("verl_reader", elasticsearch_ca_certs=None)
    with client.explained(settings), client.connect(settings) as server:
        assert server.cluster.health()


def test_kibana_and_grafana_are_verified_as_well(secured: Secured, stranger: Path):
    """Any server will do for that: what is asked is whether it is believed."""
    address = http.Address("Grafana", secured.url, "grafana_url", headers={}, login="", privileges="")
    with http.connect(address, secured.authority) as server:
        assert server.send("GET", "/_cluster/health", accept=(401,)).status == 401
    with http.connect(address, stranger) as server, pytest.raises(http.KitError, match="is not trusted"):
        server.send("GET", "/")
    plain = dataclasses.replace(address, url=secured.url.replace("https:", "http:"))
    with http.connect(plain, None) as server, pytest.raises(http.KitError, match="write https:// in grafana_url"):
        server.send("GET", "/")


# The agent.


def checked(secured: Secured, agent: dict[str, str], secret: Path | None) -> tuple[str, str, str]:
    """Return verdict, finding and remedy of the check of a login of the agents."""
    (found,) = login.check(secured.settings("verl_admin", agent=agent, deploy={"secret_file": secret}))
    return found.verdict, found.found.replace(str(secret), "FILE"), found.remedy


WRITER = {"username": "verl_writer"}


@pytest.mark.parametrize(
    ("agent", "text", "expected"),
    [
        (WRITER, f"{PASSWORD}\n", ("fine", "Accepted, and verl_writer may write records.", "")),
        (
            WRITER,
            "wrong-password",
            (
                "wrong",
                "The server does not accept the password of verl_writer in FILE.",
                "mend that, or agent.username",
            ),
        ),
        (
            {"username": "verl_reader"},
            PASSWORD,
            (
                "wrong",
                "To write records verl_reader lacks auto_configure on verl-* and index on verl-*.",
                "give that user the role verl_writer (docs/deploy/security.md)",
            ),
        ),
        (
            {},
            "bm8ta2V5",
            (
                "wrong",
                "The server does not accept the API key in FILE.",
                "make a new one (`verl-ingest key verl_writer`); or set agent.username, if it is a password",
            ),
        ),
        (
            {},
            '{\n"encoded": "bm8ta2V5"\n}',
            (
                "wrong",
                "What FILE has is no API key, which is one line without blanks.",
                "write the key's `encoded` form into it, or set agent.username",
            ),
        ),
        (WRITER, " \n", ("wrong", "FILE is empty.", "write the agents' password or API key into it")),
    ],
    ids=["right", "wrong", "reader", "no such key", "no key at all", "empty"],
)
def test_the_login_that_agents_get_is_tried(
    secured: Secured, tmp_path: Path, agent: dict[str, str], text: str, expected: tuple[str, str, str]
):
    (tmp_path / "secret").write_text(text)
    assert checked(secured, agent, tmp_path / "secret") == expected


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (
            {},
            (
                "wrong",
                "The server wants a login, and agents have none.",
                "set agent.username and deploy.secret_file (docs/deploy/security.md)",
            ),
        ),
        (WRITER, ("wrong", "The server wants a login, and verl_writer has no secret.", "set deploy.secret_file")),
        (
            WRITER | {"secret_file": "/etc/secret"},
            ("unknown", "Not tried: agents read it from /etc/secret on the nodes.", ""),
        ),
    ],
    ids=["none", "user alone", "on the nodes"],
)
def test_agents_that_get_no_login(secured: Secured, agent: dict[str, str], expected: tuple[str, str, str]):
    assert checked(secured, agent, None) == expected


def test_a_secret_that_is_not_there_is_a_row_and_no_end(secured: Secured, tmp_path: Path):
    found = "FILE, which has the agents' secret, can't be read (No such file or directory)."
    assert checked(secured, WRITER, tmp_path / "none") == ("wrong", found, "mend deploy.secret_file")


@pytest.mark.parametrize(("target", "verdicts"), [("hosts", ["wrong"]), ("compose", [])])
def test_deploy_asks_for_it_but_of_the_stack_that_has_its_own(
    secured: Secured, target: str, verdicts: list[str], tmp_path: Path
):
    class Cluster:
        name = target
        hands_out_secret = targets.KINDS[target].hands_out_secret

        def check(self, folder: Path) -> list[Check]:
            return []

    found = preflight.checks(secured.settings("verl_admin"), Cluster(), tmp_path)
    assert [check.verdict for check in found if check.name == login.NAME] == verdicts


def agent_settings(
    secured: Secured, folder: Path, *, authority: Path, user: str = "verl_writer", password: str = PASSWORD
) -> Settings:
    secret = folder / "secret"
    secret.write_text(password)
    settings = fluentbit.settings_for(
        folder / "runs", folder / "state", url=secured.url, elasticsearch_ca_certs=authority
    )
    own = {"username": user, "secret_file": str(secret)}
    return settings.model_copy(update={"agent": settings.agent.model_copy(update=own)})


def write_lines(folder: Path, run: str) -> None:
    log = folder / "runs" / run / "rank0.jsonl"
    log.parent.mkdir(parents=True)
    (folder / "agent").mkdir()
    line = '{{"step": {0}, "rank": 0, "loss": 0.5, "timestamp_ns": 1772380800{0:09}}}\n'
    log.write_text("".join(map(line.format, range(LINES))))


def test_the_agent_delivers_over_tls_as_a_writer(secured: Secured, applied: None, fluent_bit: str, tmp_path: Path):
    write_lines(tmp_path, "by-agent")
    settings = agent_settings(secured, tmp_path, authority=secured.authority)
    counted = {"index": "verl-*", "query": {"term": {"run_id": "by-agent"}}}
    with secured.client("verl_admin") as admin, fluentbit.running(fluent_bit, tmp_path / "agent", settings) as agent:

        def count() -> int:
            admin.indices.refresh(index="verl-*")
            return admin.count(**counted)["count"]

        wait_for(lambda: count() == LINES, timeout=60, what=f"{LINES} documents\n{agent.tail()}")
        assert agent.problems() == []
        assert PASSWORD not in (tmp_path / "agent" / "fluent-bit.yaml").read_text()


@pytest.mark.parametrize(("user", "password"), [("verl_writer", "wrong-password"), ("verl_reader", PASSWORD)])
def test_an_agent_whose_login_is_refused_is_not_fine(
    secured: Secured, applied: None, fluent_bit: str, tmp_path: Path, user: str, password: str
):
    write_lines(tmp_path, f"refused-{user}")
    settings = agent_settings(secured, tmp_path, authority=secured.authority, user=user, password=password)
    with fluentbit.running(fluent_bit, tmp_path / "agent", settings) as agent:
        wait_for(lambda: metrics.read(settings).is_refused, timeout=60, what="a refusal that the agent has counted")
        found = problems(collect(settings), Limits())
        agent.kill()
    assert any(
        problem.startswith("Elasticsearch refuses or is away: ")
        and "nothing was delivered since the agent's" in problem
        for problem in found
    )


def test_the_agent_sends_nothing_to_a_server_it_does_not_trust(
    secured: Secured, applied: None, stranger: Path, fluent_bit: str, tmp_path: Path
):
    write_lines(tmp_path, "to-a-stranger")
    settings = agent_settings(secured, tmp_path, authority=stranger)
    with fluentbit.running(fluent_bit, tmp_path / "agent", settings) as agent:

        def is_refused() -> bool:
            return "certificate verify failed" in agent.log.read_text() or "unable to get local issuer" in agent.tail()

        wait_for(is_refused, timeout=60, what="refusal of the certificate")
        agent.kill()
    with secured.client("verl_admin") as admin:
        admin.indices.refresh(index="verl-*")
        assert admin.count(index="verl-*", query={"term": {"run_id": "to-a-stranger"}})["count"] == 0
