"""The local Elasticsearch starts, answers, and leaves nothing behind however its user ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elasticsearch import ApiError, Elasticsearch

from tests.conftest import ES_URL, ES_VERSION
from tests.waiting import wait_for
from verl_ingest.errors import KitError
from verl_ingest.local import distribution, jdk
from verl_ingest.local import elasticsearch as local

ROOT = Path(__file__).parents[1]
real_server = pytest.mark.skipif(ES_URL is not None, reason="ELASTICSEARCH_URL stands in for the local server")


@pytest.fixture
def temporary(monkeypatch):
    """A system temp folder of the test's own, which every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    folder.rmdir()  # fails when something was left in it


def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) != 0


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_document_comes_back(elasticsearch):
    index = "local-roundtrip"
    elasticsearch.index(index=index, id="a", document={"step": 128}, refresh=True)
    hits = elasticsearch.search(index=index, query={"term": {"step": 128}})["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["a"]
    elasticsearch.indices.delete(index=index)


@real_server
@pytest.mark.server
def test_users_have_their_roles_and_nothing_is_left(temporary):
    users = [
        local.User("admin", "admin-secret", ("superuser",)),
        local.User("writer", "writer-secret", ("log_writer", "health_reader")),
    ]
    roles = {
        "log_writer": {"indices": [{"names": ["verl-*"], "privileges": ["index", "auto_configure"]}]},
        "health_reader": {"cluster": ["monitor"]},
    }
    with local.running(ES_VERSION, users=users, roles=roles) as server:
        assert Path(server.folder).parent == temporary
        with Elasticsearch(server.url, basic_auth=("writer", "writer-secret")) as writer:
            assert writer.index(index="verl-2026.03.01", document={"step": 1})["result"] == "created"
            assert {node["version"] for node in writer.nodes.info()["nodes"].values()} == {ES_VERSION}
            with pytest.raises(ApiError) as refused:
                writer.index(index="other", document={"step": 1})
            assert refused.value.status_code == 403
        with Elasticsearch(server.url, basic_auth=("admin", "admin-secret")) as admin:
            assert admin.index(index="other", document={"step": 1})["result"] == "created"
        with Elasticsearch(server.url, basic_auth=("writer", "wrong")) as stranger, pytest.raises(ApiError) as refused:
            stranger.index(index="verl-2026.03.01", document={"step": 1})
        assert refused.value.status_code == 401
    assert is_gone(server.supervisor)
    assert refuses_connections(server.url)


@real_server
def test_a_killed_user_leaves_no_server(temporary):
    program = (
        "import dataclasses, json, sys\n"
        "from verl_ingest.local import elasticsearch\n"
        "with elasticsearch.running() as server:\n"
        "    print(json.dumps(dataclasses.asdict(server)), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    user = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with user:
        server = local.Server(**json.loads(user.stdout.readline()))
        assert not refuses_connections(server.url)
        user.send_signal(signal.SIGKILL)
    wait_for(lambda: is_gone(server.supervisor), timeout=20, what="end of the supervisor")
    assert refuses_connections(server.url)


@real_server
def test_a_started_server_stays_until_it_is_stopped(temporary, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "verl_ingest.local", *arguments], cwd=ROOT, capture_output=True, text=True
        )

    assert command("status").returncode == 1
    started = command("start")
    assert started.returncode == 0, started.stderr
    try:
        assert command("start").stdout == command("status").stdout == started.stdout
        other = command("start", "--version", "9.9.9")
        assert (other.returncode, other.stderr.count("\n")) == (1, 1)
        assert "stop it before 9.9.9 starts" in other.stderr
    finally:
        stopped = command("stop")
    assert (stopped.returncode, stopped.stdout) == (0, f"{started.stdout.strip()} is stopped.\n")
    assert refuses_connections(started.stdout.strip())
    assert command("stop").returncode == 0


def test_stop_kills_no_process_that_took_over_the_number(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    bystander = subprocess.Popen(["sleep", "60"])
    (tmp_path / "verl-ingest").mkdir()
    stale = {"url": "http://127.0.0.1:1", "version": "8.19.21", "folder": "/x", "supervisor": bystander.pid}
    (tmp_path / "verl-ingest" / "elasticsearch.json").write_text(json.dumps(stale))
    assert local.stop() is None
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to hand the server to another user")
@real_server
def test_a_closed_temp_folder_is_named(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(KitError, match=r"runs as nobody .* set TMPDIR"), local.running():
        pass
    assert not list(tmp_path.iterdir())


@real_server
def test_a_slow_start_is_given_up(temporary):
    with pytest.raises(KitError, match=r"was not ready after 0\.5 s"), local.running(ready_seconds=0.5):
        pass


@real_server
def test_a_failed_start_shows_the_log(temporary):
    with pytest.raises(KitError, match=r"(?s)did not start; its log ends:.*heap"), local.running(heap_mb=1):
        pass


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KitError, match=f"can't use port {port} .*choose another"), local.running(port=port):
            pass


def install(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch()
    (home / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{version}"\n')
    return home


def test_the_highest_jdk_is_taken(tmp_path):
    homes = [install(tmp_path / version, version) for version in ("17.0.15", "25.0.3", "21", "9.0.4")]
    (tmp_path / "25.0.4").mkdir()  # the empty folder of a removed one
    assert jdk.newest([*homes, tmp_path / "25.0.4"]) == tmp_path / "25.0.3"


def test_a_missing_jdk_is_named(tmp_path):
    with pytest.raises(KitError, match="JDK of version 21 or later, and none was found; install one"):
        jdk.newest([])
    with pytest.raises(KitError, match=r"the newest found is 17\.0\.15 in .*/old; install one"):
        jdk.newest([install(tmp_path / "old", "17.0.15")])


def test_a_missing_maven_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitError, match=r"no mvn on the PATH; install it .* or set ELASTICSEARCH_URL"):
        distribution.fetch("8.19.21", tmp_path / "cache")


def fake_maven(folder: Path, script: str) -> None:
    maven = folder / "mvn"
    maven.write_text(f"#!/bin/sh\n{script}\n")
    maven.chmod(0o755)


def test_a_failed_download_is_explained_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    fake_maven(tmp_path, "echo '[ERROR] repository: Unknown host'; echo '[ERROR] more'; exit 1")
    with pytest.raises(KitError, match=r"could not fetch .*:8\.19\.21:zip: .*Unknown host; check the network"):
        distribution.fetch("8.19.21", tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_two_at_once_download_once(monkeypatch, tmp_path):
    with zipfile.ZipFile(tmp_path / "elasticsearch-1.2.3.zip", "w") as archive:
        archive.writestr("elasticsearch-1.2.3/bin/elasticsearch", "run")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    fake_maven(tmp_path, f"echo >> {tmp_path}/calls; cp {tmp_path}/*.zip .")  # runs in its output folder
    with ThreadPoolExecutor() as pool:
        homes = list(pool.map(lambda _: distribution.fetch("1.2.3", tmp_path / "cache"), range(4)))
    assert set(homes) == {tmp_path / "cache" / "elasticsearch-1.2.3"}
    assert (homes[0] / "bin" / "elasticsearch").read_text() == "run"
    assert (tmp_path / "calls").read_text() == "\n"
