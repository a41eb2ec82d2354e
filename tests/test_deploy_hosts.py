"""From a settings file to records that arrive, for real: Ansible, Fluent Bit and Elasticsearch on this machine."""

import grp
import os
import platform
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from elasticsearch import Elasticsearch

from tests.command import Outcome
from tests.secured import OPERATOR, PASSWORD, Secured, apply_templates
from tests.test_upgrade import body, older
from tests.waiting import wait_for
from verl_ingest import render, settings
from verl_ingest.cluster import targets
from verl_ingest.cluster.mark import RUN
from verl_ingest.cluster.target import Target
from verl_ingest.edge.trial import free_port
from verl_ingest.errors import KitError
from verl_ingest.index import client
from verl_ingest.settings import Settings

# As nobody but the user of these tests, whom no host needs to let become root.
LOCAL = (
    "localhost ansible_connection=local ansible_become=false ansible_python_interpreter='{{ ansible_playbook_python }}'"
)


@dataclass
class Cluster:
    """One host, this machine: its folders, the settings file, and the command line on these settings."""

    folder: Path
    command: Callable[..., Outcome]
    values: dict[str, Any]
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    servers: list[socket.socket] = field(default_factory=list)  # another program's

    @property
    def agent(self) -> int:
        return int((self.folder / "state" / "agent.pid").read_text())

    def write(self, **more: Any) -> None:
        (self.folder / "settings.yml").write_text(yaml.safe_dump(self.values | more))

    def run(self, *words: str) -> Outcome:
        return self.command("--settings", str(self.folder / "settings.yml"), *words)

    def built(self, **more: Any) -> tuple[Target, Path]:
        """Return the target of these settings, and the folder that it is rendered into."""
        self.write(**more)
        target = targets.of(settings.load(self.folder / "settings.yml"))
        return target, targets.build(target)

    def problem(self) -> str:
        """Return what `status` says is wrong with the agent of this machine."""
        rows = orjson.loads(self.run("status", "--json").out)
        [row] = [row for row in rows if row["is_node"]]
        return " ".join(row["problems"])

    def stop(self) -> None:
        script = self.folder / "etc" / "agent.sh"
        if script.exists():
            subprocess.run(["sh", script, "stop"], check=True, timeout=90)


@pytest.fixture
def cluster(
    fluent_bit: str, command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """Settings for this machine, not yet written; the agent is stopped at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)  # it would win over the file
    (tmp_path / "hosts.ini").write_text(f"{LOCAL}\n")
    ports = free_port(), free_port()
    agent = {"state": str(tmp_path / "state"), "forward_port": ports[0], "metrics_port": ports[1], "buffer_limit": "1M"}
    hosts = {
        "inventory": "hosts.ini",
        "fluent_bit": fluent_bit,
        "folder": str(tmp_path / "etc"),
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "group": grp.getgrgid(os.getgid()).gr_name,
    }
    paths = {"rank": [f"{tmp_path}/runs/{{run}}/logs/*rank*.jsonl*"], "file_logger": [], "console": [], "rollout": []}
    found = Cluster(
        tmp_path, command, {"paths": paths, "agent": agent, "deploy": {"target": "hosts", "hosts": hosts}}, ports
    )
    yield found
    for server in found.servers:
        server.close()
    found.stop()


def section(text: str, heading: str) -> list[str]:
    """Return the lines below a heading of `deploy`."""
    return text.partition(f"\n{heading}\n")[2].partition("\n\n")[0].splitlines()


def test_from_settings_to_a_record_and_back(
    cluster: Cluster, elasticsearch: Elasticsearch, elasticsearch_url: str
) -> None:
    cluster.write(elasticsearch_url=elasticsearch_url)
    (cluster.folder / "runs").mkdir()
    first = cluster.run("deploy")
    assert (first.code, first.err) == (0, "")
    assert f"state folder {cluster.folder}/state: localhost" in section(first.out, "Plan")
    assert section(first.out, "Agents") == [
        f"localhost: state folder {cluster.folder}/state, folder {cluster.folder}/etc, configuration, agent.sh, "
        "start of the agent"
    ]
    [record] = section(first.out, "A record from each node")
    assert record.startswith(f"{platform.node()}: found ") and record.endswith(" s after the writing")
    elasticsearch.indices.refresh(index="verl-*")
    assert elasticsearch.count(index="verl-*", query={"term": {"run_id": RUN}})["count"] == 0
    assert list((cluster.folder / "runs").iterdir()) == []
    pid = cluster.agent

    second = cluster.run("deploy")
    assert second.code == 0
    assert "agents: nothing to change" in section(second.out, "Plan")
    assert section(second.out, "Agents") == ["nothing to change"]
    assert section(second.out, "A record from each node")[0].startswith(platform.node())
    assert cluster.agent == pid

    cluster.write(elasticsearch_url=elasticsearch_url, samples={"text_per_step": 7})
    planned = cluster.run("deploy", "--dry-run")
    assert section(planned.out, "Plan")[-3:] == [
        "configuration (settings.lua): localhost",
        "start of the agent: localhost",
        "Dry run: nothing but build/ was written.",
    ]
    assert "text_per_step = 7" not in (cluster.folder / "etc" / "settings.lua").read_text()
    assert cluster.agent == pid

    os.kill(pid, signal.SIGKILL)  # the supervisor; Fluent Bit goes on
    target, folder = cluster.built(elasticsearch_url=elasticsearch_url)
    assert "Fluent Bit runs without its supervisor, which was killed; " in cluster.problem()
    assert list(target.roll_out(folder)) == ["localhost: start of the agent"]
    assert cluster.agent != pid
    status = orjson.loads(cluster.run("status", "--json").out)
    assert [(row["agent"]["dropped"], row["problems"]) for row in status if row["is_node"]] == [(0, [])]

    removed = cluster.run("undeploy")
    assert removed.out == (
        f"localhost: agent stopped, folder {cluster.folder}/etc removed; offsets and what waits to be sent stay in "
        f"{cluster.folder}/state\n"
    )
    assert not (cluster.folder / "etc").exists()
    assert (cluster.folder / "state" / "rank.db").exists()
    assert cluster.run("undeploy").out == "no agent was there\n"
    assert f"The agent does not run ({cluster.folder}/etc/agent.sh is not there); " in cluster.problem()

    # `undeploy --data` would also delete what other tests have on this server.
    assert list(target.remove(folder, state=True)) == [f"localhost: state folder {cluster.folder}/state removed"]
    assert not (cluster.folder / "state").exists()


class TestWithSecurity:
    @pytest.fixture
    def server(self, secured: Secured) -> Settings:
        """Settings with the login of an admin on that server; it has the kit's templates."""
        with secured.client(OPERATOR) as operator:
            apply_templates(operator)
        return secured.settings("verl_admin")

    @pytest.fixture
    def with_login(self, cluster: Cluster, server: Settings, monkeypatch: pytest.MonkeyPatch) -> Cluster:
        """The cluster, on that server; the agents' secret is a file of this folder."""
        monkeypatch.setenv("ELASTICSEARCH_PASSWORD", PASSWORD)
        (cluster.folder / "agent-password").write_text(f"{PASSWORD}\n")
        cluster.values |= {
            "elasticsearch_url": server.elasticsearch_url,
            "elasticsearch_username": "verl_admin",
            "elasticsearch_ca_certs": str(server.elasticsearch_ca_certs),
        }
        cluster.values["agent"]["username"] = "verl_writer"
        cluster.values["deploy"]["secret_file"] = "agent-password"
        return cluster

    def test_the_secret_and_the_certificate_go_along(self, with_login: Cluster) -> None:
        with_login.write()
        done = with_login.run("deploy")
        assert (done.code, done.err) == (0, "")
        assert section(done.out, "A record from each node")[0].startswith(platform.node())
        secret = with_login.folder / "etc" / "secret"
        assert (secret.stat().st_mode & 0o777, secret.read_text()) == (0o400, f"{PASSWORD}\n")
        assert PASSWORD not in "".join(path.read_text() for path in Path("build").rglob("*") if path.is_file())

        pid = with_login.agent
        Path("agent-password").write_text(PASSWORD)  # the file differs, the login is right
        target, folder = with_login.built()
        assert target.plan(folder) == [f"secret {secret}: localhost", "start of the agent: localhost"]
        assert (with_login.agent, secret.read_text()) == (pid, f"{PASSWORD}\n")

        with_login.run("undeploy")
        assert not secret.exists()

    def test_a_missing_privilege_is_named_and_nothing_is_done(self, with_login: Cluster) -> None:
        with_login.write(elasticsearch_username="verl_reader")
        done = with_login.run("deploy")
        assert done.code == 1
        assert "manage_index_templates" in done.out
        assert done.err.startswith("error: Nothing was changed, since ")
        assert not (with_login.folder / "etc").exists()

    def test_a_stale_template_is_in_the_plan_and_a_strangers_is_kept(
        self, with_login: Cluster, server: Settings
    ) -> None:
        with_login.write()
        with client.connect(server) as connected:
            older(connected)
            planned = with_login.run("deploy", "--dry-run")
            assert planned.code == 0
            plan = section(planned.out, "Plan")
            assert "index template verl: to be updated" in plan
            assert "index template verl-kit-state: to be created" in plan
            [kept] = connected.indices.get_index_template(name="verl")["index_templates"]
            assert kept["index_template"] == body("index-template-verl")

            stranger = {"index_patterns": ["verl-2*"], "priority": 500}
            connected.indices.put_index_template(name="verl", body=stranger)
            done = with_login.run("deploy")
            assert done.code == 1
            assert "index template verl" in done.out + done.err
            planned = with_login.run("deploy", "--dry-run", "--overwrite")
            assert (planned.code, planned.err) == (0, "")
            overwritten = "index template verl: to be updated (not written by verl-ingest)"
            assert overwritten in section(planned.out, "Plan")
            [kept] = connected.indices.get_index_template(name="verl")["index_templates"]
            assert kept["index_template"]["index_patterns"] == ["verl-2*"]
        assert not (with_login.folder / "etc").exists()


@dataclass(frozen=True)
class Wrong:
    """A change to the settings that makes a deployment impossible, and what is said of it."""

    change: Callable[[Cluster], None]
    said: tuple[str, ...]


def unknown_key(cluster: Cluster) -> None:
    cluster.values["deploy"]["hosts"]["inventry"] = "hosts.ini"


def away(cluster: Cluster) -> None:
    cluster.values["elasticsearch_url"] = "http://127.0.0.1:9"


def without_inventory(cluster: Cluster) -> None:
    del cluster.values["deploy"]["hosts"]["inventory"]


def other_inventory(cluster: Cluster) -> None:
    cluster.values["deploy"]["hosts"]["inventory"] = "nowhere.ini"


def empty_inventory(cluster: Cluster) -> None:
    Path("hosts.ini").write_text("")


def broken_inventory(cluster: Cluster) -> None:
    Path("hosts.ini").write_text("[a\nlocalhost what bar=\n")


def hosts_that_do_not_fit(cluster: Cluster) -> None:
    """Two names of a host that has no Fluent Bit and whose ports are taken, a Python that does not run, a stranger."""
    cluster.servers = [socket.create_server(("127.0.0.1", port)) for port in cluster.ports]
    cluster.values["deploy"]["hosts"]["fluent_bit"] = "/nowhere/fluent-bit"
    shim = cluster.folder / "python3"
    shim.write_text(
        "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\necho 'Note: ask for help' >&2\nexit 127\n"
    )
    shim.chmod(0o755)
    lines = [
        LOCAL,
        LOCAL.replace("localhost", "node-2"),
        f"pyenv ansible_connection=local ansible_python_interpreter={shim}",
        "node.invalid ansible_python_interpreter=/usr/bin/python3",
    ]
    Path("hosts.ini").write_text("\n".join(lines))


WRONG = [
    Wrong(unknown_key, ("settings.yml: unknown key deploy.hosts.inventry; did you mean inventory?",)),
    Wrong(away, ("http://127.0.0.1:9",)),
    Wrong(without_inventory, ("deploy.hosts.inventory is not set",)),
    Wrong(other_inventory, ("/nowhere.ini: no such file.",)),
    Wrong(empty_inventory, ("/hosts.ini: Ansible can't begin (no host is in it).",)),
    Wrong(broken_inventory, ("Ansible can't begin (Failed to parse inventory with 'ini' plugin: ",)),
    Wrong(
        hosts_that_do_not_fit,
        (
            "localhost and node-2: Port {0} is taken there by another program.",
            "localhost and node-2: Port {1} is taken there by another program.",
            "localhost and node-2: There is no Fluent Bit at /nowhere/fluent-bit.",
            f"localhost and node-2 both call themselves {platform.node()}",
            "pyenv: the Python that Ansible found there does not run (pyenv: python3.13: command not found).",
            "node.invalid can't be reached (Could not resolve hostname node.invalid",
        ),
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.change.__name__)
def test_what_is_wrong_is_said_before_anything_is_done(wrong: Wrong, cluster: Cluster, elasticsearch_url: str) -> None:
    cluster.values["elasticsearch_url"] = elasticsearch_url
    wrong.change(cluster)
    cluster.write()
    done = cluster.run("deploy")
    assert done.code == 1
    told = " ".join(f"{done.out} {done.err}".split())  # lines are wrapped
    assert [said for said in wrong.said if said.format(*cluster.ports) not in told] == []
    assert not (cluster.folder / "etc").exists()


def test_where_the_new_agent_does_not_start_the_former_one_is_put_back(
    cluster: Cluster, elasticsearch_url: str
) -> None:
    good, bad = cluster.values["agent"], cluster.values["agent"] | {"forward_listen": "203.0.113.1"}  # nobody's address
    log = f"; {cluster.folder}/state/agent.log has the rest."
    target, folder = cluster.built(elasticsearch_url=elasticsearch_url, agent=bad)
    with pytest.raises(
        KitError, match=r"^localhost: The agent does not start \(.*203\.0\.113\.1.*\) and was stopped"
    ) as first:
        list(target.roll_out(folder))
    assert str(first.value).endswith(log)
    script = cluster.folder / "etc" / "agent.sh"
    assert subprocess.run(["sh", script, "status"], capture_output=True, timeout=30).returncode == 3

    target, folder = cluster.built(elasticsearch_url=elasticsearch_url, agent=good)
    assert list(target.roll_out(folder)) == ["localhost: configuration, start of the agent"]
    configuration, pid = (cluster.folder / "etc" / "fluent-bit.yaml").read_bytes(), cluster.agent

    with socket.create_server(("127.0.0.1", 0)) as server:  # while the agent runs on ports of its own
        taken = server.getsockname()[1]
        target, folder = cluster.built(elasticsearch_url=elasticsearch_url, agent=good | {"forward_port": taken})
        [ports] = [check for check in target.check(folder) if check.name == "ports"]
        assert ports.found == f"localhost: Port {taken} is taken there by another program."
        assert cluster.agent == pid

    target, folder = cluster.built(elasticsearch_url=elasticsearch_url, agent=bad)
    with pytest.raises(KitError, match=r"203\.0\.113\.1.*\), so the former one was put back and runs again; "):
        list(target.roll_out(folder))
    assert (cluster.folder / "etc" / "fluent-bit.yaml").read_bytes() == configuration
    assert cluster.agent != pid
    target, folder = cluster.built(elasticsearch_url=elasticsearch_url, agent=good)
    assert target.tried(folder) == [platform.node()]
    assert target.plan(folder) == []


def test_another_agent_on_the_port_is_not_taken_for_ours(
    cluster: Cluster, fluent_bit: str, elasticsearch_url: str
) -> None:
    target, folder = cluster.built(elasticsearch_url=elasticsearch_url)
    other = [fluent_bit, "-i", "dummy", "-o", "null", "-H", "-P", str(cluster.ports[1]), "-L", "127.0.0.1"]
    with subprocess.Popen(other, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as stranger:
        try:
            wait_for(lambda: answers(cluster.ports[1]), timeout=10, what="the other Fluent Bit")
            began = time.monotonic()  # programs are told apart by their starts, to 2 s
            assert "The agent does not run" in cluster.problem()
            render.write(cluster.folder / "etc", {"agent.sh": (folder / "agent.sh").read_text()})
            copy = {name.removeprefix("agent/"): text for name, text in target.files().items() if "agent/" in name}
            render.write(cluster.folder / "etc", copy)
            wait_for(lambda: time.monotonic() > began + 4, timeout=10, what="a start that is later")
            subprocess.run(["sh", cluster.folder / "etc" / "agent.sh", "start"], check=True, timeout=30)
            assert f"Another program answers on port {cluster.ports[1]}; " in cluster.problem()
        finally:
            stranger.terminate()


def answers(port: int) -> bool:
    with socket.socket() as client_side:
        return client_side.connect_ex(("127.0.0.1", port)) == 0
