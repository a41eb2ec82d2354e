"""The deployment to the compose stack: what is rendered for it, what is checked, planned and done.

Docker is a stand-in, but in the test of the whole stack, which needs an engine.
"""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack import ROOT, assigned, defaults, real_docker, secrets_of
from tests.stand_ins import docker
from verl_ingest import settings as settings_module
from verl_ingest.cluster import targets
from verl_ingest.cluster.compose import Compose
from verl_ingest.cluster.mark import mark
from verl_ingest.edge import lint
from verl_ingest.errors import KitError
from verl_ingest.lag.facts import Agent
from verl_ingest.local import compose

SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
CLONED = (
    *("docker-compose.yml", ".env.example", "Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"),
    *("verl_ingest", "deploy", "templates"),
)


class TestRendering:
    def test_the_settings_are_those_of_the_user_as_the_stack_reaches_things(self, checkout: Path) -> None:
        compose.write_environment(checkout)
        given = settings_module.load(write(checkout, GIVEN))
        files = Compose(given).files()
        assert "hush" not in str(files)
        loaded = settings_module.load(write(checkout, files["settings.yml"]))
        assert loaded == Compose(given)._stack
        assert (loaded.expected_documents_per_day, loaded.paths) == (7, given.paths)
        assert loaded.elasticsearch_url == "http://elasticsearch:9200"
        assert (loaded.elasticsearch_username, loaded.service.username, loaded.grafana.token) == (None, None, None)
        assert (loaded.kibana_url, loaded.grafana_url) == (None, None)
        assert "VERL_INGEST_KIBANA_URL=http://localhost:5601\n" in files["links.env"]
        assert "VERL_INGEST_GRAFANA_URL=https://grafana.example\n" in files["links.env"]

    def test_without_dashboards_no_link_leads_to_them(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        compose.write_environment(checkout)
        monkeypatch.setenv("COMPOSE_PROFILES", "agent")
        assert "_URL=" not in Compose(defaults()).files()["links.env"]

    def test_the_agent_logs_in_as_the_writer_and_is_reached_from_outside_its_container(self, checkout: Path) -> None:
        files = Compose(defaults()).files()
        config = lint.parse(files["fluent-bit/fluent-bit.yaml"], "fluent-bit.yaml")
        assert lint.problems(config) == []
        assert config["env"] == {"ELASTICSEARCH_SECRET": "file:///run/secrets/writer_password"}
        assert {(output["host"], output["http_user"]) for output in config["pipeline"]["outputs"]} == {
            ("elasticsearch", "verl_writer")
        }
        assert config["service"]["http_listen"] == "0.0.0.0"
        assert config["service"]["storage.path"].startswith("/var/lib/verl-ingest/")
        tails = [each for each in config["pipeline"]["inputs"] if each["name"] == "tail"]
        assert all(path.startswith("/data/runs/") for tail in tails for path in tail["path"].split(","))
        assert {output["drop_unrecoverable_records"] for output in config["pipeline"]["outputs"]} == {"on"}
        assert "normalize.lua" in str(files.keys())

    def test_the_environment_names_the_node_and_what_was_rendered(self, checkout: Path) -> None:
        first, second = (Compose(defaults(node="n1", run=run)).files()["rendered.env"] for run in (None, "r"))
        assert "VERL_INGEST_NODE=n1\n" in first
        assert first != second == Compose(defaults(node="n1", run="r")).files()["rendered.env"]


GIVEN = """\
elasticsearch_url: https://es.example
elasticsearch_username: me
elasticsearch_password: hush-1
elasticsearch_ca_certs: /etc/ca.pem
expected_documents_per_day: 7
paths: {rank: ["/data/runs/{run}/*.jsonl"]}
service: {username: me, password: hush-2}
grafana_url: https://grafana.example
grafana: {token: hush-3}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "given.yml"
    path.write_text(text)
    return path


def asked_at(target: Compose, port: int) -> Compose:
    """Return the target, its agent's metrics being looked for at a port."""
    agent = target._stack.agent.model_copy(update={"metrics_port": port})
    target._stack = target._stack.model_copy(update={"agent": agent})
    return target


class TestTarget:
    @pytest.fixture
    def engine(self, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A stand-in for Docker on the PATH, and a .env; the path of its state."""
        compose.write_environment(checkout)
        (tmp_path / "bin").mkdir()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        return docker.place(tmp_path / "bin")

    @pytest.fixture
    def target(self, engine: Path) -> Compose:
        return Compose(defaults(node="n1"))

    @pytest.fixture
    def folder(self, target: Compose) -> Path:
        return targets.build(target)

    def change(self, state: Path, **values: Any) -> None:
        state.write_text(json.dumps(json.loads(state.read_text()) | values))

    def test_it_is_the_target_of_its_name(self, checkout: Path) -> None:
        settings = defaults(deploy=type(defaults().deploy)(target="compose"))
        assert isinstance(targets.of(settings), Compose)

    def test_all_is_fine_where_all_is_there(self, target: Compose, folder: Path) -> None:
        found = target.check(folder)
        assert {check.verdict for check in found} == {"fine"}
        assert "Docker 28.2.2 answers; Compose is 2.40.3." in [check.found for check in found]

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("old compose", "Docker Compose is 2.20.2."),
            ("old agent", "FLUENT_BIT_VERSION in .env is 5.1.1."),
            ("no runs", "There is no folder runs."),
            ("paths", "The agent's container has only /data/runs"),
            ("no .env", "There is no .env here."),
        ],
    )
    def test_what_does_not_fit_is_said(self, engine: Path, checkout: Path, what: str, said: str) -> None:
        settings = defaults()
        environment = checkout / ".env"
        match what:
            case "old compose":
                self.change(engine, compose="2.20.2")
            case "old agent":
                environment.write_text(environment.read_text().replace("=5.1.4", "=5.1.1"))
            case "no runs":
                (checkout / "runs").rmdir()
            case "paths":
                paths = settings.paths.model_copy(update={"ray": ("/tmp/ray/*.out",)})
                settings = defaults(paths=paths)
            case "no .env":
                environment.unlink()
        wrong = [check for check in Compose(settings).check(targets.BUILD) if check.verdict == "wrong"]
        assert len(wrong) == 1
        assert wrong[0].found.startswith(said)
        assert wrong[0].remedy

    def test_an_engine_that_is_away_is_one_sentence(self, engine: Path, target: Compose, folder: Path) -> None:
        self.change(engine, engine=False)
        with pytest.raises(KitError, match=r"^Asking Docker failed \(.*daemon running\?\); start it, or let this user"):
            target.check(folder)

    def test_docker_without_compose_is_the_same_sentence_everywhere(
        self, engine: Path, target: Compose, folder: Path, closed: int
    ) -> None:
        self.change(engine, compose=None)
        sentence = (
            r"^Asking for Docker Compose failed \(docker: unknown command: docker compose\); this needs the Compose "
            r"plugin of Docker, 2\.24 or later; install docker-compose-plugin\.$"
        )
        with pytest.raises(KitError, match=sentence):
            target.check(folder)
        with pytest.raises(KitError, match=sentence):
            target.plan(folder)
        with pytest.raises(KitError, match=sentence):
            target.remove(folder, state=False)
        (node,) = asked_at(target, closed).nodes(folder)
        assert re.search(sentence, node.problem)

    def test_two_roll_outs_in_a_row_change_nothing(self, target: Compose, folder: Path) -> None:
        assert len(target.plan(folder)) == len(SERVICES)
        assert "fluent-bit: started" in target.roll_out(folder)
        assert target.plan(folder) == []
        assert target.roll_out(folder) == []

    def test_a_changed_setting_starts_anew_what_reads_it(self, target: Compose, folder: Path) -> None:
        target.roll_out(folder)
        changed = Compose(defaults(node="n1", timezone="Asia/Shanghai"))
        plan = changed.plan(targets.build(changed))
        assert sorted(line.partition(":")[0] for line in plan) == ["fluent-bit", "kibana-setup", "service", "setup"]
        assert "fluent-bit: to be started anew, since what it is started with has changed" in plan

    def test_a_changed_password_starts_anew_who_has_one(self, target: Compose, folder: Path, checkout: Path) -> None:
        target.roll_out(folder)
        environment = checkout / ".env"
        environment.write_text(re.sub(r"^(VERL_READER_PASSWORD=).*", r"\1another", environment.read_text(), flags=re.M))
        plan = target.plan(targets.build(target))
        assert {line.partition(":")[0] for line in plan} == set(SERVICES) - {"elasticsearch"}

    def test_what_has_ended_is_started_again(self, engine: Path, target: Compose, folder: Path) -> None:
        target.roll_out(folder)
        containers = json.loads(engine.read_text())["containers"]
        containers["grafana"]["State"] = {"Status": "exited", "ExitCode": 137}
        self.change(engine, containers=containers)
        assert target.plan(folder) == ["grafana: to be started again, since it is exited"]

    def test_a_service_that_does_not_start_ends_it(self, engine: Path, target: Compose, folder: Path) -> None:
        self.change(engine, broken=["kibana"])
        with pytest.raises(KitError, match=r"^`docker compose up --detach --wait --build` failed; its output above"):
            target.roll_out(folder)

    def test_the_node_is_this_machine(self, target: Compose, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        agent = Agent("5.1.4", 60, 10, 0, 0, 0, 0, 0, ())
        monkeypatch.setattr("verl_ingest.lag.metrics.read", lambda settings: agent)
        node = target.nodes(folder)[0]
        assert (node.name, node.agent, node.problem) == ("n1", agent, "")

    def test_an_agent_that_does_not_answer_is_said(self, target: Compose, folder: Path, closed: int) -> None:
        node = asked_at(target, closed).nodes(folder)[0]
        assert node.agent is None
        assert node.problem.startswith(f"No agent answers at 127.0.0.1:{closed} (")
        assert node.problem.endswith("; see `docker compose ps` and `docker compose logs`.")

    @pytest.fixture
    def closed(self) -> Iterator[int]:
        """A port on which nothing listens."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            yield taken.getsockname()[1]

    def test_a_mark_is_written_where_the_agent_sees_it_and_leaves_nothing(
        self, checkout: Path, target: Compose, folder: Path
    ) -> None:
        found = mark(defaults(), node="n1", nanoseconds=1_790_000_000_000_000_000)
        assert found.path.startswith("/data/runs/")
        target.write(folder, {"n1": found})
        path = checkout / "runs" / Path(found.path).relative_to("/data/runs")
        assert path.read_text() == f"{found.line}\n"
        target.erase(folder, {"n1": found})
        assert [*(checkout / "runs").iterdir()] == []
        target.erase(folder, {"n1": found})

    def test_erasing_leaves_what_is_not_the_marks(self, checkout: Path, target: Compose, folder: Path) -> None:
        found = mark(defaults(), node="n1", nanoseconds=1_790_000_000_000_000_000)
        target.write(folder, {"n1": found})
        other = (checkout / "runs" / Path(found.path).relative_to("/data/runs")).with_name("other")
        other.touch()
        target.erase(folder, {"n1": found})
        assert other.exists()
        assert [*other.parent.iterdir()] == [other]

    def test_a_mark_that_cannot_be_written_is_said(self, checkout: Path, target: Compose, folder: Path) -> None:
        found = mark(defaults(), node="n1", nanoseconds=1_790_000_000_000_000_000)
        (checkout / "runs" / "verl-ingest-canary").touch()
        with pytest.raises(KitError, match=r"this can't be written \("):
            target.write(folder, {"n1": found})

    def test_removing_takes_the_agent_and_its_volume_only_with_its_state(
        self, engine: Path, target: Compose, folder: Path
    ) -> None:
        target.roll_out(folder)
        assert target.remove(folder, state=False) == ["fluent-bit: removed"]
        left = json.loads(engine.read_text())
        assert set(left["containers"]) == set(SERVICES) - {"fluent-bit"}
        assert left["volumes"] == ["checkout_agent"]
        assert target.remove(folder, state=False) == []
        assert target.remove(folder, state=True) == ["volume checkout_agent: removed"]
        assert json.loads(engine.read_text())["volumes"] == []

    def test_a_stack_without_the_agent(self, engine: Path, checkout: Path, target: Compose, folder: Path) -> None:
        text = (checkout / ".env").read_text()
        (checkout / ".env").write_text(text.replace("COMPOSE_PROFILES=agent,dashboards", "COMPOSE_PROFILES=dashboards"))
        (found,) = [check for check in target.check(folder) if check.name == "agent"]
        assert (found.verdict, found.found) == ("watch", "COMPOSE_PROFILES in .env leaves out the agent.")
        assert target.nodes(folder) == []
        with pytest.raises(KitError, match="leaves out the agent, so no record can arrive; add agent to it"):
            target.tried(folder)
        assert target.remove(folder, state=True) == ["volume checkout_agent: removed"]

    def make_up(self) -> subprocess.CompletedProcess[str]:
        """Run what `make up` runs."""
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "verl_ingest.cluster.up"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    def test_make_up_starts_all_and_says_where_it_is(self, engine: Path, checkout: Path) -> None:
        (checkout / ".env").unlink()
        done = self.make_up()
        assert (done.returncode, done.stderr) == (0, "")
        assert (
            "Kibana          http://localhost:5601       user elastic, password ELASTIC_PASSWORD of .env" in done.stdout
        )
        assert not any(value in done.stdout for value in secrets_of((checkout / ".env").read_text()).values())
        assert (checkout / "build/compose/fluent-bit/normalize.lua").exists()
        assert "compose up --detach --wait --build" in json.loads(engine.read_text())["asked"]

    def test_make_up_ends_with_one_sentence(self, engine: Path) -> None:
        self.change(engine, compose="2.20.2")
        done = self.make_up()
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "error: Docker Compose is 2.20.2. To go on, update it to 2.24 or later.\n"

    def test_the_demo_starts_elasticsearch_alone(self, engine: Path, checkout: Path) -> None:
        login = compose.start(checkout)
        assert login.password == assigned(checkout / ".env")["ELASTIC_PASSWORD"]
        assert json.loads(engine.read_text())["asked"] == ["compose up --detach --wait elasticsearch"]
        assert set(json.loads(engine.read_text())["containers"]) == {"elasticsearch"}


@real_docker
def test_the_whole_stack_starts_and_a_record_arrives(checkout: Path) -> None:
    for name in CLONED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, checkout / name)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def up() -> None:
        subprocess.run([sys.executable, "-m", "verl_ingest.cluster.up"], env=environment, check=True)

    def docker(*words: str) -> str:
        return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout

    try:
        up()
        containers = docker("compose", "ps", "--all", "--quiet").split()
        assert len(containers) == len(SERVICES)
        shown = docker("inspect", *containers)
        assert not any(value in shown for value in secrets_of((checkout / ".env").read_text()).values())
        login = {
            "ELASTICSEARCH_USERNAME": "elastic",
            "ELASTICSEARCH_PASSWORD": compose.values(checkout)["ELASTIC_PASSWORD"],
        }
        settings = write(checkout, "deploy: {target: compose}\n")
        deploy = [sys.executable, "-m", "verl_ingest", "--settings", str(settings), "deploy"]
        done = subprocess.run(deploy, env=environment | login, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "agents: nothing to change" in done.stdout
        assert "records of 1 node arrive" in done.stdout
        up()
        assert docker("compose", "ps", "--all", "--quiet").split() == containers

        text = (checkout / ".env").read_text()
        (checkout / ".env").write_text(re.sub(r"^(VERL_\w+_PASSWORD)=.*", r"\1=another", text, flags=re.MULTILINE))
        up()
        reader = base64.b64encode(b"verl:another").decode()
        pages = urllib.request.Request("http://127.0.0.1:9110/runs", headers={"Authorization": f"Basic {reader}"})
        with urllib.request.urlopen(pages, timeout=20) as answer:
            assert answer.status == 200
    finally:
        subprocess.run(["docker", "compose", "--profile", "*", "down", "--volumes"], check=True)
