"""docker-compose.yml, its .env and its users; `docker compose config` is the real one, where there is one."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack import ROOT, assigned, defaults, real_compose, secrets_of
from tests.stand_ins import docker
from tests.stand_ins.recording import Answer, Recording, Request
from verl_ingest.cluster import compose as target_module
from verl_ingest.cluster import targets
from verl_ingest.cluster.compose import Compose
from verl_ingest.local import compose
from verl_ingest.settings import Settings

FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
SECRET = re.compile(r"password|key$", re.IGNORECASE)


class TestFile:
    def test_every_port_is_on_loopback(self) -> None:
        ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
        assert len(ports) == 7
        assert all(port.startswith("127.0.0.1:") for port in ports)

    @pytest.mark.parametrize("name", SERVICES)
    def test_a_service_is_bounded(self, name: str) -> None:
        service = SERVICES[name]
        assert service["mem_limit"]
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["restart"] == ("no" if name in docker.ONE_SHOT else "unless-stopped")

    @pytest.mark.parametrize("name", SERVICES)
    def test_an_image_is_pinned_in_one_place(self, name: str) -> None:
        image = SERVICES[name]["image"]
        assert image == "verl-ingest:latest" or re.search(r":v?\$\{[A-Z_]+_VERSION:\?run make up\}$", image), image

    def test_the_kits_image_is_built_once(self) -> None:
        """Built for each service that has it, it is another image at each `make up`, which starts all of them anew."""
        assert [name for name, service in SERVICES.items() if "build" in service] == ["service"]
        for name, service in SERVICES.items():
            if service["image"] == SERVICES["service"]["image"] and name != "service":
                assert service["pull_policy"] == "never"

    def test_dependencies_are_waited_for(self) -> None:
        for name, service in SERVICES.items():
            for other, how in service.get("depends_on", {}).items():
                if other in docker.ONE_SHOT:
                    assert how["condition"] == "service_completed_successfully", name
                else:
                    assert how["condition"] == "service_healthy", name
                    assert "test" in SERVICES[other]["healthcheck"], other

    def test_what_ends_is_waited_for(self) -> None:
        """`up --wait` takes a container that has ended, and that none waits for, to have failed."""
        for name in docker.ONE_SHOT:
            waiting = [other for other in SERVICES.values() if name in other.get("depends_on", {})]
            profiles = SERVICES[name].get("profiles")
            assert any(other.get("profiles") in (None, profiles) for other in waiting), name

    def test_no_environment_holds_a_secret(self) -> None:
        for name, service in SERVICES.items():
            for variable, value in service.get("environment", {}).items():
                assert not SECRET.search(variable) or "/run/secrets/" in value, f"{name}: {variable}"
        assert all(set(secret) == {"environment"} for secret in FILE["secrets"].values())

    def test_no_secret_has_a_value(self) -> None:
        text = (ROOT / "docker-compose.yml").read_text()
        assert all(
            value.startswith('"${')
            for value in re.findall(r"(?:[pP]assword|encryptionKey): (.+)", text)
            if '"' in value
        )
        example = (ROOT / ".env.example").read_text()
        assert len(secrets_of(example)) == 7
        assert not any(secrets_of(example).values())

    def test_every_secret_is_read_and_given(self) -> None:
        given = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}
        assert given == set(FILE["secrets"])
        variables = {secret["environment"] for secret in FILE["secrets"].values()}
        text = (ROOT / "docker-compose.yml").read_text()
        assert variables | set(re.findall(r"\$\{([A-Z_]+):", text)) | {"COMPOSE_PROFILES"} == set(
            assigned(ROOT / ".env.example")
        )

    def test_a_secret_has_no_owner(self) -> None:
        """With a `uid`, Docker before 28 looks for the container's user among those of the host, and does not start."""
        for name, service in SERVICES.items():
            for secret in service.get("secrets", []):
                assert isinstance(secret, str), name
            for config in service.get("configs", []):
                assert set(config) == {"source", "target"}, name

    def test_who_has_a_secret_is_started_anew_with_another(self) -> None:
        for name, service in SERVICES.items():
            if name != "elasticsearch" and (service.get("secrets") or service.get("configs")):
                assert service["env_file"][0]["path"] in ("build/compose/rendered.env", "build/compose/given.env"), name

    def test_mounts_are_read_only_but_for_volumes(self) -> None:
        for name, service in SERVICES.items():
            for volume in service.get("volumes", []):
                if isinstance(volume, dict):
                    assert (volume["read_only"], volume["bind"]) == (True, {"create_host_path": False}), name
                else:
                    source, _, rest = volume.partition(":")
                    assert source in FILE["volumes"] or rest.endswith(":ro"), f"{name}: {volume}"

    def test_what_is_mounted_is_there(self) -> None:
        rendered = {str(targets.BUILD / "compose" / name) for name in Compose(defaults()).files()}
        for service in SERVICES.values():
            for volume in service.get("volumes", []):
                source = volume["source"] if isinstance(volume, dict) else volume.partition(":")[0]
                if source.startswith("./"):
                    assert (ROOT / source).exists()
                elif source.startswith("build/"):
                    assert any(name == source or name.startswith(f"{source}/") for name in rendered), source

    def test_grafana_has_what_its_provisioning_asks_for(self) -> None:
        text = "".join(path.read_text() for path in (ROOT / "deploy/grafana/provisioning").rglob("*.yaml"))
        asked = set(re.findall(r"(?<!\$)\$\{(\w+)\}", text))
        assert asked == {name for name in SERVICES["grafana"]["environment"] if not name.startswith("GF_")}

    @real_compose
    def test_compose_takes_it(self, checkout: Path) -> None:
        refused = subprocess.run(["docker", "compose", "config"], capture_output=True, text=True)
        assert refused.returncode != 0
        assert "missing a value: run make up" in refused.stderr
        compose.write_environment(checkout)
        targets.build(Compose(defaults()))
        taken = subprocess.run(
            ["docker", "compose", "config", "--format", "json"], capture_output=True, text=True, check=True
        )
        config = json.loads(taken.stdout)
        assert taken.stderr == ""
        assert set(config["services"]) == set(SERVICES)
        assert config["services"]["fluent-bit"]["environment"]["VERL_INGEST_NODE"] == socket.gethostname()
        assert config["services"]["grafana"]["environment"]["ELASTICSEARCH_PASSWORD"].startswith("$$__file{")

    @real_compose
    def test_compose_sees_a_change_of_what_is_rendered(self, checkout: Path) -> None:
        compose.write_environment(checkout)

        def environments(settings: Settings) -> dict[str, dict[str, str]]:
            targets.build(Compose(settings))
            services = json.loads(target_module._compose("config", "--format", "json"))["services"]
            return {name: service.get("environment", {}) for name, service in services.items()}

        before, after = environments(defaults()), environments(defaults(timezone="Asia/Shanghai"))
        changed = {name for name in before if before[name] != after[name]}
        assert changed == {"fluent-bit", "setup", "kibana-setup", "service"}
        (checkout / ".env").write_text((checkout / ".env").read_text().replace("READER_PASSWORD=", "READER_PASSWORD=1"))
        after = environments(defaults())
        assert {name for name in before if before[name] == after[name]} == {"elasticsearch"}

    @real_compose
    def test_less_can_be_chosen(self, checkout: Path) -> None:
        compose.write_environment(checkout)
        environment = os.environ | {"COMPOSE_PROFILES": ""}
        listed = subprocess.run(
            ["docker", "compose", "config", "--services"], env=environment, capture_output=True, text=True, check=True
        )
        assert set(listed.stdout.split()) == {"elasticsearch", "users", "setup", "service"}


class TestEnvironment:
    def test_passwords_are_made_once_and_for_the_owner_alone(self, checkout: Path) -> None:
        path = compose.write_environment(checkout)
        assert path.stat().st_mode & 0o777 == 0o600
        first = path.read_text()
        made = secrets_of(first)
        assert {len(value) for value in made.values()} == {32}
        assert len({*made.values()}) == len(made) == 7
        assert re.sub(r"(_PASSWORD|_KEY)=.*", r"\1=", first) == (checkout / ".env.example").read_text()
        assert compose.write_environment(checkout).read_text() == first

    def test_what_an_older_one_lacks_is_added_and_what_it_has_stays(self, checkout: Path) -> None:
        older = "# Mine.\nSTACK_VERSION=8.19.3\nELASTIC_PASSWORD=chosen\nKIBANA_PASSWORD=\n"
        path = checkout / ".env"
        path.write_text(older)
        path.chmod(0o644)
        compose.write_environment(checkout)
        assert path.stat().st_mode & 0o777 == 0o600
        text = path.read_text()
        assert text.startswith("# Mine.\nSTACK_VERSION=8.19.3\nELASTIC_PASSWORD=chosen\nKIBANA_PASSWORD=")
        assert set(assigned(path)) == set(assigned(checkout / ".env.example"))
        assert all(secrets_of(text).values())
        assert text.count("STACK_VERSION") == 1
        assert compose.write_environment(checkout).read_text() == text

    def test_the_environment_wins_as_it_does_in_docker_compose(
        self, checkout: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (checkout / ".env").write_text("VERL_RUNS='/data/my runs'\n")
        assert compose.values(checkout)["VERL_RUNS"] == "/data/my runs"
        monkeypatch.setenv("VERL_RUNS", "/other")
        assert compose.values(checkout)["VERL_RUNS"] == "/other"
        assert compose.values(checkout)["COMPOSE_PROFILES"] == "agent,dashboards"


class Users(Recording):
    """The users' part of Elasticsearch's security API, with the reserved users elastic and kibana_system."""

    def __init__(self) -> None:
        super().__init__()
        self.passwords = {"elastic": "e-secret", "kibana_system": ""}
        self.roles: dict[str, list[str]] = {}

    def answer(self, request: Request) -> Answer:
        login = base64.b64encode(f"elastic:{self.passwords['elastic']}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {login}":
            return Answer(401, {"error": "unable to authenticate user [elastic]", "status": 401})
        match request.method, request.path.strip("/").split("/"):
            case "PUT", ["_security", "user", name, "_password"] if name in self.passwords:
                self.passwords[name] = request.json["password"]
                return Answer(200, {})
            case "PUT", ["_security", "user", name]:
                created = name not in self.passwords
                self.passwords[name], self.roles[name] = request.json["password"], request.json["roles"]
                return Answer(200, {"created": created})
        return Answer(404, {"error": "no such user"})


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
class TestUsers:
    @pytest.fixture
    def secrets(self, tmp_path: Path) -> Path:
        for name in ("elastic", "kibana", "writer", "reader"):
            (tmp_path / f"{name}_password").write_text(f"{name[0]}-secret")
        return tmp_path

    def run(self, url: str, secrets: Path, **other: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "ELASTICSEARCH_URL": url, "SECRETS": str(secrets), **other}
        script = ["bash", str(ROOT / "deploy/elasticsearch/users.sh")]
        return subprocess.run(script, env=environment, capture_output=True, text=True)

    def test_they_are_made_and_made_again(self, secrets: Path) -> None:
        with Users() as server:
            for _ in range(2):
                done = self.run(server.url, secrets)
                assert (done.returncode, done.stderr) == (0, "")
        assert server.passwords == {
            "elastic": "e-secret",
            "kibana_system": "k-secret",
            "verl_writer": "w-secret",
            "verl_reader": "r-secret",
        }
        assert server.roles == {"verl_writer": ["verl_writer"], "verl_reader": ["verl_reader"]}
        assert "secret" not in done.stdout

    def test_a_password_that_is_refused_is_named(self, secrets: Path, tmp_path: Path) -> None:
        quick = tmp_path / "bin"
        quick.mkdir()
        (quick / "curl").write_text(f'#!/bin/sh\nexec {shutil.which("curl")} "$@" --retry 0\n')
        (quick / "curl").chmod(0o755)
        with Users() as server:
            server.passwords["elastic"] = "another"
            done = self.run(server.url, secrets, PATH=f"{quick}:{os.environ['PATH']}")
        assert done.returncode == 1
        assert "is the ELASTIC_PASSWORD of .env still that of elastic?" in done.stderr
        assert "e-secret" not in done.stderr
