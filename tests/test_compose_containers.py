"""What runs in the stack's containers, run here: their own commands and rendered files on a secured Elasticsearch.

Only what a container has under names of its own (addresses, folders, ports) is replaced.
"""

import base64
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from elasticsearch import Elasticsearch

from tests.conftest import ES_URL, ES_VERSION
from tests.stack import ROOT, defaults
from tests.stand_ins.kibana import Kibana
from tests.waiting import wait_for
from verl_ingest import render
from verl_ingest.cluster.compose import Compose
from verl_ingest.edge.trial import free_port
from verl_ingest.index import roles
from verl_ingest.local import compose
from verl_ingest.local import elasticsearch as local

pytestmark = pytest.mark.skipif(ES_URL is not None, reason="ELASTICSEARCH_URL stands in for a server with users")
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
ADMIN, PASSWORD = "admin", "of-the-admin"  # `elastic` can't be a user of files
SECRETS = {"elastic": PASSWORD, "writer": "of-the-writer", "reader": "of-the-reader", "service": "of-the-pages"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with the stack's users and roles, kept in files."""
    users = [
        local.User(ADMIN, PASSWORD, ("superuser",)),
        *(local.User(f"verl_{name}", SECRETS[name], (f"verl_{name}",)) for name in ("writer", "reader")),
    ]
    with local.running(ES_VERSION, users=users, roles=roles.BODIES) as running:
        yield running.url


class Stack:
    """The rendered files of the stack with addresses and folders of this machine, and its secrets."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.runs, self.state = folder, folder / "runs", folder / "state"
        self._theirs = {
            "http://elasticsearch:9200": server,
            "host: elasticsearch\n": "host: 127.0.0.1\n",
            "port: 9200\n": f"port: {server.rpartition(':')[2]}\n",
            "/run/secrets": str(folder / "secrets"),
            "/data/runs": str(self.runs),
            "/var/lib/verl-ingest": str(self.state),
            "0.0.0.0": "127.0.0.1",
        }
        for made in (self.runs, self.state, folder / "secrets"):
            made.mkdir()
        for name, value in SECRETS.items():
            (folder / "secrets" / f"{name}_password").write_text(value)
        rendered = Compose(defaults(node="n1")).files()
        render.write(folder, {name: self.here(text) for name, text in rendered.items()})

    def here(self, text: str) -> str:
        for theirs, mine in self._theirs.items():
            text = text.replace(theirs, mine)
        return text

    def command(self, service: str, **other: str) -> tuple[list[str], dict[str, str]]:
        """Return the command of one of the kit's containers and its environment; `other` replaces some of that."""
        what = SERVICES[service]
        files = [self.folder / Path(file["path"]).name for file in what["env_file"]]
        lines = [line.split("=", 1) for file in files for line in file.read_text().splitlines() if line[0] != "#"]
        given = {name: self.here(value) for name, value in what["environment"].items()} | dict(lines)
        given = {name: ADMIN if value == "elastic" else value for name, value in given.items()}
        kit = self.folder / "bin"
        kit.mkdir(exist_ok=True)
        (kit / "verl-ingest").write_text(f'#!/bin/sh\nexec {sys.executable} -m verl_ingest "$@"\n')
        (kit / "verl-ingest").chmod(0o755)
        path = {"PATH": f"{kit}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        script = self.here(what["command"][0]).replace("$$", "$")
        return [*what["entrypoint"], script], path | given | other


@pytest.fixture
def stack(server: str, checkout: Path, tmp_path: Path) -> Stack:
    compose.write_environment(checkout)
    (tmp_path / "stack").mkdir()
    return Stack(tmp_path / "stack", server)


@pytest.fixture
def set_up(stack: Stack, server: str) -> Stack:
    """The stack, after its service `setup`."""
    command, environment = stack.command("setup")
    done = subprocess.run(command, cwd=stack.folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return stack


def test_setup_brings_the_templates(set_up: Stack, server: str) -> None:
    with Elasticsearch(server, basic_auth=(ADMIN, PASSWORD)) as admin:
        assert admin.indices.exists_index_template(name="verl")


def test_kibana_gets_its_objects(set_up: Stack) -> None:
    login = base64.b64encode(f"{ADMIN}:{PASSWORD}".encode()).decode()
    with Kibana(login=f"Basic {login}") as kibana:
        command, environment = set_up.command("kibana-setup", VERL_INGEST_KIBANA_URL=kibana.url)
        done = subprocess.run(command, cwd=set_up.folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert kibana.stored["default"]


def test_the_agent_delivers_as_the_writer_and_the_pages_show_it_as_the_reader(set_up: Stack, fluent_bit: str) -> None:
    log = set_up.runs / "ppo-compose" / "logs" / "rank0.jsonl"
    log.parent.mkdir(parents=True)
    lines = [{"step": 1, "rank": 0, "stage": "actor", "metric_name": "kl_divergence", "value": 0.5}]
    log.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    with agent(set_up, fluent_bit), pages(set_up) as address:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            read(f"{address}/runs")
        wait_for(
            lambda: "ppo-compose" in read(f"{address}/runs", "verl", SECRETS["service"]),
            timeout=60,
            what="the run on the pages",
        )
        page = read(f"{address}/runs/ppo-compose/steps/1", "verl", SECRETS["service"])
        assert "kl_divergence" in page
        assert "http://localhost:5601" in page


@contextmanager
def agent(stack: Stack, binary: str) -> Iterator[None]:
    folder = stack.folder / "fluent-bit"
    config = (folder / "fluent-bit.yaml").read_text()
    for what, mine in (("http_port: 2020", free_port()), ("port: 24224", free_port())):
        config = config.replace(what, f"{what.partition(':')[0]}: {mine}")
    # The stack's Fluent Bit is newer than the one here may be.
    config = re.sub(r"^.*drop_unrecoverable_records.*\n", "", config, flags=re.MULTILINE)
    (folder / "fluent-bit.yaml").write_text(config)
    with (stack.folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "--config", str(folder / "fluent-bit.yaml")], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def pages(stack: Stack) -> Iterator[str]:
    command, environment = stack.command("service")
    port = free_port()
    command[-1] += f" --port {port}"
    process = subprocess.Popen(command, cwd=stack.folder, env=environment, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{address}/healthz"), timeout=60, what="health of the pages")
        yield address
    finally:
        process.terminate()
        process.wait(30)


def answers(url: str) -> bool:
    try:
        return read(url) == "ok\n"
    except urllib.error.URLError:
        return False


def read(url: str, *login: Any) -> str:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(':'.join(login).encode()).decode()}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()
