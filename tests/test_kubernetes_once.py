"""What runs once on each node of a cluster: the canary, and what empties the agents' folders; what undeploy removes."""

import json
import os
import subprocess

import pytest

from tests.kubernetes import not_ready, only_container, secret, target
from tests.waiting import wait_for
from verl_ingest.cluster.mark import Mark
from verl_ingest.errors import KitError

MARKS = {
    "gpu-0": Mark("/data/runs/verl-ingest-canary/logs/a.jsonl", '{"event":"canary"}', "verl-2026.11.29", "a"),
    "gpu-1": Mark("/data/runs/verl-ingest-canary/logs/b.jsonl", '{"event":"canary"}', "verl-2026.11.29", "b"),
}


def test_the_canary_is_one_pod_a_node_and_is_gone_afterwards(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    before = cluster.read()["objects"]
    made.write(folder, MARKS)
    objects = cluster.read()["objects"]
    assert json.loads(objects["configmap/verl-ingest-canary"])["data"] == {
        "gpu-0.path": MARKS["gpu-0"].path,
        "gpu-0.line": '{"event":"canary"}\n',
        "gpu-1.path": MARKS["gpu-1"].path,
        "gpu-1.line": '{"event":"canary"}\n',
    }
    assert "daemonset.apps/verl-ingest-canary" in objects
    made.erase(folder, MARKS)
    assert cluster.read()["objects"] == before
    assert made.plan(folder) == []


def test_a_canary_that_may_not_write_says_so(cluster, tmp_path):
    last = {
        "exitCode": 1,
        "message": "mkdir: cannot create directory '/data/runs/verl-ingest-canary': Permission denied",
    }
    cluster.change(pods={"verl-ingest-canary": {"gpu-1": not_ready(waiting={"reason": "CrashLoopBackOff"}, last=last)}})
    made, folder = target(tmp_path)
    made.roll_out(folder)
    with pytest.raises(KitError, match=r"verl-ingest-canary are ready: .* on gpu-1 .*mkdir.*Permission denied"):
        made.write(folder, MARKS)


@pytest.mark.parametrize("node", ["gpu-0", "gpu-9"])
def test_the_canarys_own_script_writes_and_cleans_up(tmp_path, monkeypatch, node):
    """Run what the pod runs; a node without a mark writes nothing and is ready all the same."""
    monkeypatch.chdir(tmp_path)
    _, folder = target(tmp_path)
    container = only_container(folder / "once" / "canary.yaml.txt")
    marks, runs = tmp_path / "marks", tmp_path / "runs"
    marks.mkdir()
    (runs / "grpo-7b").mkdir(parents=True)
    written = runs / "verl-ingest-canary" / "logs" / "a b.jsonl"
    (marks / "gpu-0.path").write_text(str(written))
    (marks / "gpu-0.line").write_text("line\n")

    def command(words: list[str]) -> list[str]:
        return [word.replace("/marks", str(marks)) for word in words]

    environment = {"PATH": os.environ["PATH"], "NODE": node}
    is_ready = command(container["readinessProbe"]["exec"]["command"])
    pod = subprocess.Popen(command([*container["command"], *container["args"]]), env=environment)
    try:
        wait_for(lambda: subprocess.run(is_ready, env=environment).returncode == 0, timeout=30, what="ready pod")
        assert written.exists() is (node == "gpu-0")
        assert node != "gpu-0" or written.read_text() == "line\n"
    finally:
        pod.terminate()
        assert pod.wait(30) in (0, -15)  # the signal may come before the trap is set, where nothing was to be written
    assert [path.name for path in runs.iterdir()] == ["grpo-7b"]


def test_undeploy_takes_what_deploy_brought_and_leaves_the_namespace(cluster, tmp_path):
    made, folder = target(tmp_path, deploy=secret(tmp_path), service_url="https://kit.example.org")
    assert made.remove(folder, state=False) == []
    made.roll_out(folder)
    lines = made.remove(folder, state=False)
    assert "daemonset.apps/verl-ingest-agent: removed" in lines and "secret/verl-ingest-agent: removed" in lines
    assert "kubectl delete namespace verl-ingest" in lines[-1]
    assert [*cluster.read()["objects"]] == ["namespace/verl-ingest", "serviceaccount/verl-ingest"]
    assert made.remove(folder, state=False) == []
    assert not any("removal" in str(call) for call in cluster.read()["calls"])


def test_undeploy_takes_the_secret_of_former_settings_and_no_other(cluster, tmp_path):
    with_secret, folder = target(tmp_path, deploy=secret(tmp_path))
    with_secret.roll_out(folder)
    without, folder = target(tmp_path)
    assert "secret/verl-ingest-agent: removed" in without.remove(folder, state=False)

    own = {"kind": "Secret", "metadata": {"name": "verl-ingest-agent"}}
    cluster.change(objects=cluster.read()["objects"] | {"secret/verl-ingest-agent": json.dumps(own)})
    without.roll_out(folder)
    assert not any("secret" in line and "removed" in line for line in without.remove(folder, state=False))
    assert "secret/verl-ingest-agent" in cluster.read()["objects"]


def test_undeploy_does_not_wait_for_a_node_that_is_not_ready(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    cluster.change(away=["gpu-1"])
    assert "daemonset.apps/verl-ingest-agent: removed" in made.remove(folder, state=True)


def test_the_state_on_the_nodes_goes_only_when_asked(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    made.remove(folder, state=False)
    assert "/var/lib/verl-ingest on each node: emptied" in made.remove(folder, state=True)
    assert [*cluster.read()["objects"]] == ["namespace/verl-ingest", "serviceaccount/verl-ingest"]
    assert any("removal.yaml.txt" in str(call) for call in cluster.read()["calls"])


def test_the_script_that_empties_the_state_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "state"
    (state / "storage" / "tail.0").mkdir(parents=True)
    (state / "rank.db").write_text("x")
    _, folder = target(tmp_path, agent={"state": str(state)})
    container = only_container(folder / "once" / "removal.yaml.txt")
    is_ready = container["readinessProbe"]["exec"]["command"]
    assert subprocess.run(is_ready).returncode == 1
    pod = subprocess.Popen([*container["command"], *container["args"]])
    try:
        wait_for(lambda: subprocess.run(is_ready).returncode == 0, timeout=30, what="empty state")
    finally:
        pod.terminate()
        pod.wait(30)
    assert state.exists() and [*state.iterdir()] == []
