"""Rolling out to Kubernetes: the plan, what is applied, what keeps it from ending."""

import json

import pytest

from tests.kubernetes import METRICS, MOUNT, STUCK, secret, target
from verl_ingest.errors import KitError


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


NEW = {"agent": {"poll": True}}  # what restarts the agents


def agents(cluster) -> dict[str, int]:
    """Return node -> which of the templates that were applied its agent has."""
    return cluster.read()["generations"]["verl-ingest-agent"]


@pytest.mark.parametrize("nodes", [2, 9])
@pytest.mark.parametrize("tolerations", [[], [{"operator": "Exists"}]])
def test_a_node_that_is_not_ready_holds_up_no_roll_out(cluster, tmp_path, nodes, tolerations):
    """Its old pod can't be stopped, and counts among those that may be out at a time: one of ten."""
    names = [f"gpu-{number}" for number in range(nodes)]
    cluster.change(nodes=names)
    made, folder = target(tmp_path, kubernetes={"tolerations": tolerations})
    made.roll_out(folder)
    cluster.change(away=["gpu-1"], metrics={f"verl-ingest-agent-{name}": METRICS for name in names})
    made, folder = target(tmp_path, kubernetes={"tolerations": tolerations}, **NEW)
    assert made.roll_out(folder)[-1] == (
        "gpu-1: not ready, so nothing was changed there; Kubernetes does it by itself when the node is back"
    )
    assert agents(cluster) == dict.fromkeys(names, 2) | {"gpu-1": 1}
    assert made.tried(folder) == [name for name in names if name != "gpu-1"]
    assert made.plan(folder) == []  # as many may be out again as the manifest says
    problem = next(node.problem for node in made.nodes(folder) if node.name == "gpu-1")
    assert problem.startswith("The node gpu-1 is not ready, so neither is its pod verl-ingest-agent-gpu-1; mend the")


def test_without_a_look_at_the_nodes_a_pod_that_is_not_ready_is_waited_for(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    cluster.change(away=["gpu-1"], denied=["nodes"], metrics={"verl-ingest-agent-gpu-0": METRICS})
    with pytest.raises(KitError, match=r"1 agent of 2 can't be asked: .* on gpu-1 runs but is not ready"):
        made.tried(folder)
    made, folder = target(tmp_path, **NEW)
    with pytest.raises(
        KitError, match=r"pods of verl-ingest-agent are ready: See `kubectl describe daemonset verl-ing"
    ):
        made.roll_out(folder)


def test_a_pod_that_does_not_start_is_waited_for_beside_a_node_that_is_not_ready(cluster, tmp_path):
    made, folder = target(tmp_path)
    made.roll_out(folder)
    cluster.change(
        nodes=["gpu-0", "gpu-1", "gpu-2"], away=["gpu-1"], pods={"verl-ingest-agent": {"gpu-2": STUCK["image"][0]}}
    )
    made, folder = target(tmp_path, **NEW)
    with pytest.raises(KitError, match=r"^1 of 2 pods of verl-ingest-agent are ready: The pod .* on gpu-2 has not got"):
        made.roll_out(folder)
    cluster.change(pods={})
    assert made.plan(folder) != []  # what was to help the roll-out is undone by the next
    made.roll_out(folder)
    assert made.plan(folder) == []


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


def test_each_node_tells_its_counters(cluster, tmp_path):
    made, folder = target(tmp_path)
    assert made.nodes(folder) == []
    made.roll_out(folder)
    cluster.change(metrics={"verl-ingest-agent-gpu-0": METRICS})
    first, second = made.nodes(folder)
    assert (first.name, first.agent.version, first.agent.delivered) == ("gpu-0", "5.1.4", 123)
    assert second.agent is None
    assert second.problem.startswith("The agent in the pod verl-ingest-agent-gpu-1 does not answer (Error from server")
