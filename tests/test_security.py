"""The kit's roles and TLS on a real server with both: what each login can do, and what it is told otherwise."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from elasticsearch import Elasticsearch
from elasticsearch import exceptions as refused

from tests import certificates, fluentbit
from tests.command import Outcome
from tests.conftest import ES_URL, ES_VERSION
from tests.serving import served
from tests.test_cli import run
from tests.waiting import wait_for
from verl_ingest.checks import login
from verl_ingest.checks.check import Check
from verl_ingest.cli import retention
from verl_ingest.cluster import preflight, targets
from verl_ingest.index import client, roles
from verl_ingest.install import http
from verl_ingest.lag import metrics
from verl_ingest.lag.collect import collect
from verl_ingest.lag.verdict import Limits, problems
from verl_ingest.local import elasticsearch as local
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

PASSWORD = "right-password"
RUN = "secured"
LINES = 40
DAY = "verl-2026.03.01"

pytestmark = pytest.mark.server
As = Callable[..., Outcome]


@dataclass(frozen=True)
class Secured:
    """A server that wants a login and speaks HTTPS; `authority` is the PEM file of who signed its certificate."""

    url: str
    authority: Path

    def settings(self, user: str, **other: object) -> Settings:
        login = {"elasticsearch_username": user, "elasticsearch_password": PASSWORD}
        return Settings(**{"elasticsearch_url": self.url, "elasticsearch_ca_certs": self.authority, **login, **other})

    def environment(self, user: str) -> dict[str, str]:
        names = {"URL": self.url, "CA_CERTS": str(self.authority), "USERNAME": user, "PASSWORD": PASSWORD}
        return {f"ELASTICSEARCH_{name}": value for name, value in names.items()}

    def client(self, user: str) -> Elasticsearch:
        return client.connect(self.settings(user))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with roles.yml as rendered, a user of each role, and one who may do everything."""
    if ES_URL:
        pytest.skip("needs a server of its own with security on, and ELASTICSEARCH_URL names another")
    authority, path = trustme.CA(), tmp_path_factory.mktemp("tls") / "authority.pem"
    authority.cert_pem.write_to_path(path)
    users = [local.User(role, PASSWORD, (role,)) for role in roles.BODIES]
    users.append(local.User("operator", PASSWORD, ("superuser",)))
    with local.running(ES_VERSION, users=users, tls=certificates.local(authority)) as server:
        found = Secured(server.url.replace("127.0.0.1", "localhost"), path)
        # As an operator does, who appends it to the file of a running node.
        (Path(server.folder) / "elasticsearch" / "config" / "roles.yml").write_text(roles.file())
        with found.client("verl_admin") as admin:
            wait_for(lambda: _is_known(admin), timeout=60, what="reading of roles.yml by the server")
        yield found


def _is_known(admin: Elasticsearch) -> bool:
    try:
        return bool(admin.cluster.health())
    except refused.AuthorizationException:
        return False


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
    for words in (["apply"], ["load", str(logs), "--timezone", "Etc/UTC"]):
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


def test_an_admin_whose_roles_are_in_a_file_hears_nothing_of_them(loaded: str, as_: As):
    applied = as_("verl_admin", "apply")
    assert (applied.code, applied.err) == (0, "")
    assert "index template verl: kept\n" in applied.out
    assert "Roles:" not in applied.out  # his own is one of the kit's, from a file


def test_a_server_that_takes_no_roles_over_its_api_is_no_failure(loaded: str, as_: As):
    applied = as_("operator", "apply")
    assert applied.code == 0
    assert "\nRoles: not written, as the server takes none over its API (" in applied.out


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
        assert reader.count(index="verl_steps")["count"] == LINES


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


# Who is at the other end.


def sentence(settings: Settings) -> str:
    with pytest.raises(client.StoreError) as failed, client.explained(settings), client.connect(settings) as server:
        server.cluster.health()
    return str(failed.value).replace(settings.elasticsearch_url, "SERVER")


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
def test_deploy_asks_for_it_but_of_the_stack_that_has_its_own(secured: Secured, target: str, verdicts: list[str]):
    class Cluster:
        name = target
        hands_out_secret = targets.KINDS[target].hands_out_secret

        def check(self, folder: Path) -> list[Check]:
            return []

    found = preflight.checks(secured.settings("verl_admin"), Cluster(), Path())
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


def test_the_agent_delivers_over_tls_as_a_writer(secured: Secured, loaded: str, fluent_bit: str, tmp_path: Path):
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
    secured: Secured, loaded: str, fluent_bit: str, tmp_path: Path, user: str, password: str
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
    secured: Secured, loaded: str, stranger: Path, fluent_bit: str, tmp_path: Path
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
