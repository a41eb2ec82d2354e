"""Which nodes get an agent: what `kubectl get nodes` prints as JSON -> those that are not ready, those with taints."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.settings import Toleration

# What the pods of every DaemonSet bear by themselves.
_ALWAYS = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect)
    for effect, names in {
        "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
        "NoExecute": ("not-ready", "unreachable"),
    }.items()
    for name in names
)


def names(listed: Mapping[str, Any]) -> list[str]:
    """Return the names of all nodes of a list."""
    return [node["metadata"]["name"] for node in listed["items"]]


def not_ready(listed: Mapping[str, Any]) -> list[str]:
    """Return the names of the nodes that say so, or of which nothing has been heard for a while."""
    return [node["metadata"]["name"] for node in listed["items"] if not _is_ready(node)]


def with_agents(listed: Mapping[str, Any], tolerations: Sequence[Toleration]) -> list[str]:
    """Return the names of the nodes that get an agent now."""
    without = {*not_ready(listed), *tainted(listed, tolerations)}
    return [name for name in names(listed) if name not in without]


def tainted(listed: Mapping[str, Any], tolerations: Sequence[Toleration]) -> dict[str, str]:
    """Return the ready nodes that get no agent: name -> the first taint that keeps it off, as kubectl writes taints.

    Nodes that are not ready have taints for that, which go by themselves.
    """
    found = {}
    for node in listed["items"]:
        taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] != "PreferNoSchedule"]
        kept_off = [taint for taint in taints if not any(_bears(each, taint) for each in (*tolerations, *_ALWAYS))]
        if kept_off and _is_ready(node):
            found[node["metadata"]["name"]] = _written(kept_off[0])
    return found


def _is_ready(node: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node["status"].get("conditions", []))


def _bears(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    """Tell whether a toleration fits a taint; one without key or effect fits every one."""
    return (
        toleration.key in (None, taint["key"])
        and toleration.effect in (None, taint["effect"])
        and (toleration.operator == "Exists" or (toleration.value or "") == taint.get("value", ""))
    )


def _written(taint: Mapping[str, str]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"
