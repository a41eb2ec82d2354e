"""What is looked at in a cluster before anything is changed: each thing that is wrong is one sentence."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes import secret, target
from verl_ingest.checks.check import answered


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
    assert "gpu-4 (team=rl:NoSchedule) and 2 more." in found(tmp_path)["nodes"][1]


def test_nodes_that_are_not_ready_are_told(cluster, tmp_path):
    cluster.change(away=["gpu-1"])
    verdict, text = found(tmp_path)["nodes"]
    assert verdict == "watch"
    assert text.startswith("Of 2, these are not ready: gpu-1; no record is tried there")


def test_without_kubectl_it_says_so(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "needs kubectl, which is not on the PATH" in found(tmp_path)["kubernetes"][1]
