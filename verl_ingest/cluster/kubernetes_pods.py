"""Why a pod does not run: what `kubectl get pods` and `get events` print as JSON -> sentences with a remedy."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TEMPLATE = "pod-template-generation"  # label of a DaemonSet's pods

# Waiting reasons that time alone does not mend.
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_GONE = (
    "The node {node} is not ready, so neither is its pod {name}; mend the node, or give the pod up "
    "(`kubectl delete pod {name} --force`)."
)
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff")


@dataclass(frozen=True)
class Pod:
    """A pod on a node ('' where it has none yet). `problem`: why it is not ready, '' where it is.

    `is_stuck`: waiting longer does not help. `runs`: its main container does, so that it can be asked. `is_away`: its
    node is not ready. `template`: the number of its DaemonSet's template that it was made from.
    """

    name: str
    node: str
    runs: bool
    is_stuck: bool
    problem: str
    is_away: bool = False
    template: str = ""


def read(pods: Mapping[str, Any], events: Mapping[str, Any], *, not_ready: Collection[str]) -> list[Pod]:
    """Return the pods of a list, in the order of their nodes' names; those that are being stopped are left out.

    On nodes that are `not_ready` no pod runs, whatever was last heard of it, and none can be stopped.
    """
    last = {event["involvedObject"]["name"]: event["message"] for event in events["items"]}
    found = []
    for item in pods["items"]:
        name, node = item["metadata"]["name"], node_of(item["spec"])
        if node in not_ready:
            found.append(Pod(name, node, False, False, _GONE.format(node=node, name=name), is_away=True))
        elif "deletionTimestamp" not in item["metadata"]:
            found.append(_pod(item, last))
    return sorted(found, key=lambda pod: (pod.node, pod.name))


def node_of(spec: Mapping[str, Any]) -> str:
    """Return the node that a pod of a DaemonSet is for, also before it is given to it."""
    if node := spec.get("nodeName"):
        return node
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", []) if field["key"] == "metadata.name"]
    return fields[0]["values"][0] if fields else ""


def _pod(item: Mapping[str, Any], events: Mapping[str, str]) -> Pod:
    name, status = item["metadata"]["name"], item["status"]
    node = node_of(item["spec"])
    where = f"the pod {name} on {node}" if node else f"the pod {name}"
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    waiting = [each for each in containers if "waiting" in each["state"]]
    stuck = next((each for each in waiting if each["state"]["waiting"].get("reason") in (*_IMAGE, *_CONFIG)), None)
    runs = any("running" in each["state"] for each in status.get("containerStatuses", []))
    if conditions.get("Ready", {}).get("status") == "True":
        problem = ""
    elif stuck:
        problem = _waits(where, stuck)
    elif conditions.get("PodScheduled", {}).get("status") == "False":
        problem = (
            f"{where} has found no place ({_short(conditions['PodScheduled'].get('message', ''))}); make room for it."
        )
    elif name in events:
        problem = f"{where} does not start ({_short(events[name])}); mend that on the node or in the settings."
    elif runs:
        problem = f"{where} runs but is not ready; see `kubectl logs {name}`."
    else:
        problem = f"{where} is not up; see `kubectl describe pod {name}`."
    template = item["metadata"].get("labels", {}).get(TEMPLATE, "")
    return Pod(name, node, runs, stuck is not None, problem[:1].upper() + problem[1:], template=template)


def _waits(where: str, container: Mapping[str, Any]) -> str:
    """Say why a container does not start."""
    waiting = container["state"]["waiting"]
    reason, message = waiting["reason"], _short(waiting.get("message", ""))
    if reason in _IMAGE:
        remedy = "set deploy.kubernetes.image and kit_image to what its node can pull"
        return f"{where} has not got its image {container['image']} ({reason}); {remedy}."
    if reason == "CrashLoopBackOff":
        ended = container.get("lastState", {}).get("terminated", {})
        said = _short(_last_line(ended.get("message", ""))) or f"exit code {ended.get('exitCode', 'unknown')}"
        return f"{where} ends again and again ({said}); mend that, and see its log."
    if missing := re.search(r'(secret|configmap) "?([^" ]+)"? not found', message):
        return f"{where} lacks the {missing[1]} {missing[2]}; docs/deploy/kubernetes.md says how to make it."
    return f"{where} does not start ({reason}: {message}); mend that."


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _short(text: str, most: int = 200) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= most else f"{text[:most]}…"
