"""Why a pod does not run: its status and events as the cluster has them -> one sentence."""

import re

import pytest

from tests.kubernetes import MOUNT, STUCK
from tests.stand_ins.kubectl import READY
from verl_ingest.cluster import kubernetes_pods
from verl_ingest.cluster.kubernetes_pods import Pod


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


def test_a_node_that_is_not_given_its_pod_yet_has_its_name():
    fields = [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    assert kubernetes_pods.node_of({"affinity": {"nodeAffinity": terms}}) == "gpu-7"
    assert kubernetes_pods.node_of({}) == ""
