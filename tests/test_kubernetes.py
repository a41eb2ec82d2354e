"""Rolling out to Kubernetes: a stand-in answers for kubectl as the real one does; each failure is one sentence."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stand_ins.kubectl import READY, Cluster
from tests.waiting import wait_for
from verl_ingest import render
from verl_ingest.checks.check import answered
from verl_ingest.cluster import kubernetes, kubernetes_pods
from verl_ingest.cluster.kubernetes import Kubernetes
from verl_ingest.cluster.kubernetes_pods import Pod
from verl_ingest.cluster.mark import Mark
from verl_ingest.errors import KitError
from verl_ingest.settings import Settings

METRICS = """\
2026-12-22T18:41:01.000000001Z fluentbit_build_info{hostname="gpu-0",version="5.1.4",os="linux"} = 1797984000
2026-12-22T18:41:01.000000001Z fluentbit_uptime{hostname="gpu-0"} = 61
2026-12-22T18:41:00.000000001Z fluentbit_output_proc_records_total{name="records"} = 120
2026-12-22T18:41:00.000000001Z fluentbit_output_proc_records_total{name="samples"} = 3
"""
MARKS = {
    "gpu-0": Mark("/data/runs/verl-ingest-canary/logs/a.jsonl", '{"event":"canary"}', "verl-2026.11.29", "a"),
    "gpu-1": Mark("/data/runs/verl-ingest-canary/logs/b.jsonl", '{"event":"canary"}', "verl-2026.11.29", "b"),
}


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Cluster:
    """A cluster of two nodes that kubectl speaks to, its namespace not there yet."""
    cluster = Cluster(tmp_path)
    monkeypatch.setenv("PATH", f"{cluster.path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(kubernetes, "ROLL_OUT_S", 0)  # what waits has one look
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)
    return cluster


def target(tmp_path: Path, **values: Any) -> tuple[Kubernetes, Path]:
    """Return a target of these settings, and its folder with all files in it."""
    kubernetes_values = {"context": "gpu-cluster", "kit_image": "registry.example.org/verl-ingest:1.2.3"}
    deploy = {"target": "kubernetes", "kubernetes": kubernetes_values | values.pop("kubernetes", {})}
    settings = {"elasticsearch_url": "https://es.example.org", "deploy": deploy | values.pop("deploy", {})} | values
    made = Kubernetes(Settings(**settings))
    folder = tmp_path / "build"
    render.write(folder, made.files())
    return made, folder


def secret(tmp_path: Path, text: str = "hush-hush\n") -> dict[str, str]:
    (tmp_path / "key.txt").write_text(text)
    return {"secret_file": str(tmp_path / "key.txt")}


# ---- what is looked at before


def found(tmp_path: Path, **values: Any) -> dict[str, tuple[str, str]]:
    """Return what check says: name -> verdict and the whole sentence."""
    made, folder = target(tmp_path, **values)
    checks = answered("kubernetes", lambda: made.check(folder))
    return {each.name: (each.verdict, f"{each.found} {each.remedy}") for each in checks}


def test_all_is_fine_and_nothing_was_changed(cluster, tmp_path):
    checks = found(tmp_path, deploy=secret(tmp_path))
    assert {verdict for verdict, _ in checks.values()} == {"fine"}, checks
    assert checks["nodes"][1].startswith("The labels kubernetes.io/os=linux are those of 2 nodes.")
    assert cluster.read()["objects"] == {}


@pytest.mark.parametrize(
    ("change", "values", "name", "sentence"),
    [
        ({}, {"kubernetes": {"context": "away"}}, "kubernetes", r"10\.1\.2\.3:6443 was refused.*deploy.kubernetes.con"),
        ({}, {"kubernetes": {"context": "x"}}, "kubernetes", 'context "x" does not exist.*kubectl config get-contexts'),
        ({"logged_out": True}, {}, "kubernetes", "must be logged in.*log in to the cluster again"),
        ({"version": "v1.25.9"}, {}, "cluster", r"v1\.25\.9 answers\. update it to 1\.26 or later"),
        (
            {"denied": ["daemonsets"]},
            {},
            "rights",
            r"daemonsets\.apps \(get, list, watch, create, patch, delete\)\. .*rights\.yaml",
        ),
        ({"denied": ["namespaces"]}, {}, "rights", r"namespaces \(get, patch\)"),
        ({"nodes": []}, {}, "nodes", r"of 0 nodes\. mend deploy\.kubernetes\.node_selector"),
        ({}, {"agent": {"secret_file": "/x"}}, "secrets", "no Secret verl-ingest-agent in verl-ingest"),
        ({}, {"retention": {"days": 3}, "elasticsearch_api_key": "k"}, "secrets", "no Secret verl-ingest-retention"),
        ({}, {"elasticsearch_url": "http://localhost:9200"}, "address", "in a pod is the pod itself"),
    ],
)
def test_what_is_wrong_is_a_sentence(cluster, tmp_path, change, values, name, sentence):
    cluster.change(**change)
    (verdict, text) = found(tmp_path, **values)[name]
    assert verdict == "wrong"
    assert re.search(sentence, text), text


def test_what_is_only_worth_a_look_stops_nothing(cluster, tmp_path):
    cluster.change(denied=["nodes"])
    images = {"image": "fluent/fluent-bit:5.1.1", "kit_image": "verl-ingest:latest"}
    checks = found(tmp_path, kubernetes=images)
    assert checks["Fluent Bit"][0] == checks["image"][0] == "watch"
    assert checks["nodes"][0] == "unknown"
    assert checks["nodes"][1].endswith(
        "have `list nodes` given to you, or count the nodes that `deploy` names at its end"
    )
    assert found(tmp_path, kubernetes={"image": "mirror/fluent-bit@sha256:0"})["Fluent Bit"][0] == "unknown"


@pytest.mark.parametrize(
    ("image", "is_told"),
    [
        ("registry.example.org:5000/verl-ingest", True),
        ("registry.example.org/verl-ingest:latest", True),
        ("registry.example.org/verl-ingest:2", False),
        ("registry.example.org/verl-ingest@sha256:0", False),
    ],
)
def test_an_image_whose_name_stays_when_it_is_built_anew_is_told(cluster, tmp_path, image, is_told):
    checks = found(tmp_path, kubernetes={"kit_image": image})
    assert ("image" in checks) is is_told
    assert (
        not is_told or "nodes keep the one they have when it is built anew. give each build a tag" in checks["image"][1]
    )


GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TEAM = {"key": "team", "value": "rl", "effect": "NoSchedule"}
SOFT = {"key": "team", "value": "rl", "effect": "PreferNoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "tolerations", "kept_off"),
    [
        ([GPU, SOFT, CORDONED], None, None),
        ([GPU, TEAM], None, "gpu-1 (team=rl:NoSchedule)"),
        ([GPU], [], "gpu-1 (nvidia.com/gpu=present:NoSchedule)"),
        ([CORDONED | {"effect": "NoExecute"}], None, "gpu-1 (node.kubernetes.io/unschedulable:NoExecute)"),
        ([TEAM], [{"key": "team", "value": "rl"}], None),
        ([TEAM], [{"key": "team", "value": "infra"}], "gpu-1 (team=rl:NoSchedule)"),
        ([TEAM], [{"key": "team", "operator": "Exists", "effect": "NoExecute"}], "gpu-1 (team=rl:NoSchedule)"),
        ([TEAM, GPU], [{"operator": "Exists"}], None),
    ],
)
def test_nodes_whose_taints_keep_agents_off_are_told(cluster, tmp_path, taints, tolerations, kept_off):
    cluster.change(taints={"gpu-1": taints})
    verdict, text = found(tmp_path, kubernetes={} if tolerations is None else {"tolerations": tolerations})["nodes"]
    assert verdict == ("watch" if kept_off else "fine"), text
    sentence = (
        f"Of 2, these get no agent since they have taints: {kept_off}. if they should, name the taints in deploy."
    )
    assert not kept_off or text.startswith(sentence)


def test_of_many_nodes_a_few_are_named(cluster, tmp_path):
    nodes = [f"gpu-{number}" for number in range(9)]
    cluster.change(nodes=nodes, taints={node: [TEAM] for node in nodes[2:7]})
    assert "gpu-4 (team=rl:NoSchedule) and 2 others." in found(tmp_path)["nodes"][1]


def test_without_kubectl_it_says_so(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs kubectl, which is not on the PATH" in found(tmp_path)["kubernetes"][1]


# ---- plan and roll-out


def test_a_first_roll_out_and_a_second_that_changes_nothing(cluster, tmp_path):
    made, folder = target(tmp_path, deploy=secret(tmp_path), service_url="https://kit.example.org")
    plan = made.plan(folder)
    assert {"namespace/verl-ingest: new", "daemonset.apps/verl-ingest-agent: new", "secret/verl-ingest-agent: new"} <= {
        *plan
    }
    assert cluster.read()["objects"] == {}
    assert made.roll_out(folder) == plan
    assert "hush-hush" not in json.dumps(cluster.read()["calls"])  # in no argument: others see those
    assert json.loads(cluster.read()["objects"]["secret/verl-ingest-agent"])["data"] == {"secret": "aHVzaC1odXNo"}
    assert made.plan(folder) == []
    assert cluster.calls("rollout", "restart") == []


def test_what_changed_is_named_and_what_is_not_wanted_any_more_goes(cluster, tmp_path):
    made, folder = target(tmp_path, retention={"days": 30})
    made.roll_out(folder)
    made, folder = target(tmp_path, agent={"poll": True, "forward_listen": "0.0.0.0"})
    plan = ["DaemonSet verl-ingest-agent: changed", "Service verl-ingest-agent: new"]
    plan += ["cronjob.batch/verl-ingest-retention: to be removed"]
    assert sorted(line for line in made.plan(folder) if "Policy" not in line and "ConfigMap" not in line) == plan
    made.roll_out(folder)
    assert "cronjob.batch/verl-ingest-retention" not in cluster.read()["objects"]
    assert made.plan(folder) == []


def test_another_secret_restarts_the_agents(cluster, tmp_path):
    made, folder = target(tmp_path, deploy=secret(tmp_path))
    made.roll_out(folder)
    secret(tmp_path, "another")
    assert made.plan(folder) == ["Secret verl-ingest-agent: changed"]
    made.roll_out(folder)
    assert cluster.calls("rollout", "restart") == [["rollout", "restart", "daemonset/verl-ingest-agent"]]
    assert made.plan(folder) == []


def test_a_first_secret_restarts_nothing(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    made, folder = target(tmp_path, deploy=secret(tmp_path))
    assert "Secret verl-ingest-agent: new" in made.plan(folder)
    made.roll_out(folder)
    assert cluster.calls("rollout", "restart") == []


def test_what_someone_changed_by_hand_is_not_overwritten(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    cluster.change(conflict=True)
    with pytest.raises(KitError, match=r"conflict with \"kubectl-edit\" .*someone else changed it: undo that, or"):
        made.roll_out(folder)


def test_a_secret_file_that_is_not_there_is_named(cluster, tmp_path):
    made, folder = target(tmp_path, deploy={"secret_file": "gone.txt"})
    with pytest.raises(KitError, match=r"deploy.secret_file: gone.txt can't be read: No such file"):
        made.plan(folder)


def not_ready(*, waiting: dict[str, str] | None = None, last: dict[str, Any] | None = None, init: bool = False) -> Any:
    """Return a pod's status with one container that does not run."""
    container = {"name": "x", "image": "fluent/fluent-bit:5.1.4", "state": {"waiting": waiting or {}}}
    container["lastState"] = {"terminated": last} if last else {}
    scheduled = {"type": "PodScheduled", "status": "True"}
    key = "initContainerStatuses" if init else "containerStatuses"
    return {"phase": "Pending", "conditions": [scheduled, {"type": "Ready", "status": "False"}], key: [container]}


MOUNT = 'MountVolume.SetUp failed for volume "logs-0" : hostPath type check failed: /data/runs is not a directory'
STUCK = {
    "image": (
        not_ready(
            waiting={"reason": "ImagePullBackOff", "message": 'Back-off pulling image "fluent/fluent-bit:5.1.4"'}
        ),
        r"has not got its image fluent/fluent-bit:5\.1\.4 \(ImagePullBackOff\); set deploy\.kubernetes\.image",
    ),
    "image of the first container": (
        not_ready(waiting={"reason": "ErrImagePull", "message": "not found"}, init=True),
        r"has not got its image",
    ),
    "secret": (
        not_ready(waiting={"reason": "CreateContainerConfigError", "message": 'secret "verl-ingest-agent" not found'}),
        r"lacks the secret verl-ingest-agent; docs/deploy/kubernetes\.md says how to make it",
    ),
    "end": (
        not_ready(
            waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"},
            last={"exitCode": 1, "message": "[info] one\n[error] [config] could not read file\n"},
        ),
        r"ends again and again \(\[error\] \[config\] could not read file\)",
    ),
    "silent end": (
        not_ready(waiting={"reason": "CrashLoopBackOff"}, last={"exitCode": 137}),
        r"ends again and again \(exit code 137\)",
    ),
    "folder": (
        not_ready(waiting={"reason": "ContainerCreating"}),
        "does not start \\(MountVolume.*/data/runs is not a",
    ),
    "place": (
        {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient memory."}],
        },
        r"has found no place \(0/2 nodes: Insufficient memory\); make room",
    ),
    "not ready": (
        READY | {"conditions": [{"type": "Ready", "status": "False"}]},
        "runs but is not ready; see `kubectl",
    ),
}


@pytest.mark.parametrize("case", STUCK)
def test_what_keeps_an_agent_from_running_is_a_sentence(case):
    status, sentence = STUCK[case]
    event = {"involvedObject": {"name": "agent-x"}, "message": MOUNT}
    item = {"metadata": {"name": "agent-x"}, "spec": {"nodeName": "gpu-1"}, "status": status}
    events = {"items": [event] if case == "folder" else []}
    (pod,) = kubernetes_pods.read({"items": [item]}, events, not_ready=[])
    assert re.match(f"The pod agent-x on gpu-1 {sentence}", pod.problem), pod.problem
    assert pod.is_stuck is (case not in ("folder", "place", "not ready"))
    assert pod.runs is (case == "not ready")


def test_pods_that_run_have_no_problem_and_those_that_stop_are_left_out():
    ready = {"metadata": {"name": "a"}, "spec": {"nodeName": "gpu-1"}, "status": READY}
    stopping = {"metadata": {"name": "b", "deletionTimestamp": "2026-11-29T20:37:23Z"}, "spec": {}, "status": READY}
    none = {"items": []}
    assert kubernetes_pods.read({"items": [stopping, ready]}, none, not_ready=[]) == [
        Pod("a", "gpu-1", True, False, "")
    ]


def test_a_node_that_is_not_ready_is_told_and_deploy_goes_on_without_it(cluster, tmp_path):
    cluster.change(away=["gpu-1"], metrics={"verl-ingest-agent-gpu-0": METRICS})
    verdict, text = found(tmp_path)["nodes"]
    assert (verdict, text[:46]) == ("watch", "Of 2, these are not ready: gpu-1; no record is")
    made, folder = target(tmp_path)
    made.roll_out(folder)
    assert made.tried(folder) == ["gpu-0"]
    problem = made.nodes(folder)[1].problem
    assert problem.startswith("The node gpu-1 is not ready, so neither is its pod verl-ingest-agent-gpu-1; mend the")
    cluster.change(denied=["nodes"])  # then it can't be known
    with pytest.raises(
        KitError, match=r"1 agent of 2 can't be asked: .*the pod verl-ingest-agent-gpu-1 does not answer"
    ):
        made.tried(folder)


def test_a_node_that_is_not_ready_is_named_where_a_roll_out_waits_for_it(cluster, tmp_path):
    """An old pod there counts among those that may be out at a time, and is never gone."""
    stopping = READY | {"conditions": [{"type": "Ready", "status": "False"}]}
    cluster.change(
        away=["gpu-1"], pods={"verl-ingest-agent": {"gpu-1": stopping}}, stopping=["verl-ingest-agent-gpu-1"]
    )
    made, folder = target(tmp_path)
    with pytest.raises(KitError, match=r"^1 of 2 pods of verl-ingest-agent are ready: The node gpu-1 is not ready, so"):
        made.roll_out(folder)


@pytest.mark.parametrize("case", ["image", "folder"])
def test_a_roll_out_that_does_not_end_says_why(cluster, tmp_path, case):
    status, sentence = STUCK[case]
    event = {"involvedObject": {"name": "verl-ingest-agent-gpu-1"}, "message": MOUNT}
    cluster.change(pods={"verl-ingest-agent": {"gpu-1": status}}, events=[event])
    made, folder = target(tmp_path)
    with pytest.raises(KitError, match=f"^1 of 2 pods of verl-ingest-agent are ready: The pod .* on gpu-1 {sentence}"):
        made.roll_out(folder)
    cluster.change(metrics={"verl-ingest-agent-gpu-0": METRICS})
    nodes = made.nodes(folder)
    assert [(node.name, node.agent is None) for node in nodes] == [("gpu-0", False), ("gpu-1", True)]


def test_a_service_that_does_not_start_is_told_of_too(cluster, tmp_path):
    cluster.change(pods={"verl-ingest-service": {"gpu-0": STUCK["end"][0]}})
    made, folder = target(tmp_path, service_url="https://kit.example.org")
    with pytest.raises(KitError, match=r"0 of 1 pods of verl-ingest-service are ready: The pod .* ends again"):
        made.roll_out(folder)


# ---- nodes, canary, removal


def test_each_node_tells_its_counters(cluster, tmp_path):
    made, folder = target(tmp_path)
    assert made.nodes(folder) == []
    made.roll_out(folder)
    cluster.change(metrics={"verl-ingest-agent-gpu-0": METRICS})
    first, second = made.nodes(folder)
    assert (first.name, first.agent.version, first.agent.delivered) == ("gpu-0", "5.1.4", 123)
    assert second.agent is None
    assert second.problem.startswith("The agent in the pod verl-ingest-agent-gpu-1 does not answer (Error from server")


def test_a_node_that_is_not_given_its_pod_yet_has_its_name():
    fields = [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    assert kubernetes_pods.node_of({"affinity": {"nodeAffinity": terms}}) == "gpu-7"
    assert kubernetes_pods.node_of({}) == ""


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


def only_container(manifest: Path) -> dict[str, Any]:
    (container,) = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"]["containers"]
    return container


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
    container = yaml.safe_load((folder / "once" / "removal.yaml.txt").read_text())["spec"]["template"]["spec"][
        "containers"
    ][0]
    is_ready = container["readinessProbe"]["exec"]["command"]
    assert subprocess.run(is_ready).returncode == 1
    pod = subprocess.Popen([*container["command"], *container["args"]])
    try:
        wait_for(lambda: subprocess.run(is_ready).returncode == 0, timeout=30, what="empty state")
    finally:
        pod.terminate()
        pod.wait(30)
    assert state.exists() and [*state.iterdir()] == []
