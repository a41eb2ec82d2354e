"""kubectl on a small cluster, which is a JSON file: answers and exit codes as kubectl 1.32 and Kubernetes 1.34 give.

A DaemonSet or Deployment that is applied has its pods at once, one a node, in the state that the file has for its name.
Pods of a DaemonSet are replaced as its controller does (rollingUpdate of pkg/controller/daemon/update.go).
"""

import fcntl
import json
import math
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

KINDS = {
    "Namespace": "namespace",
    "ServiceAccount": "serviceaccount",
    "ConfigMap": "configmap",
    "Secret": "secret",
    "Service": "service",
    "Deployment": "deployment.apps",
    "CronJob": "cronjob.batch",
    "DaemonSet": "daemonset.apps",
    "NetworkPolicy": "networkpolicy.networking.k8s.io",
}
READY = {
    "phase": "Running",
    "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
    "containerStatuses": [{"name": "x", "image": "x", "ready": True, "state": {"running": {}}}],
}
AWAY = READY | {"conditions": [{"type": "Ready", "status": "False"}]}  # what the cluster takes it to be


class Cluster:
    """The cluster's file, as a test sees it. `place` is a folder of the test's own."""

    def __init__(self, place: Path) -> None:
        self.file = place / "cluster.json"
        program = place / "bin" / "kubectl"
        program.parent.mkdir()
        root = Path(__file__).parents[2]
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
            f"from tests.stand_ins import kubectl\nkubectl.main({str(self.file)!r})\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.path = str(program.parent)
        self.write(
            {
                "version": "v1.34.4",
                "nodes": ["gpu-0", "gpu-1"],
                "taints": {},
                "away": [],
                "objects": {},
                "templates": {},
                "generations": {},
                "denied": [],
                "pods": {},
                "events": [],
                "metrics": {},
                "calls": [],
            }
        )

    def read(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    def write(self, state: dict[str, Any]) -> None:
        self.file.write_text(json.dumps(state))

    def change(self, **values: Any) -> None:
        self.write(self.read() | values)

    def calls(self, *beginning: str) -> list[list[str]]:
        """Return the commands that were given, those of a beginning."""
        return [call for call in self.read()["calls"] if call[: len(beginning)] == list(beginning)]


def main(file: str) -> NoReturn:
    words, flags = _parsed(sys.argv[1:])
    with Path(f"{file}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several are asked at the same time
        state = json.loads(Path(file).read_text())
        state["calls"].append([*words, *flags.get("-f", []), *flags.get("-k", [])])
        try:
            _refuse(state, flags)
            out, code = _answer(state, words, flags)
        finally:
            Path(file).write_text(json.dumps(state))
    print(out, end="")
    sys.exit(code)


def _parsed(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return words and flags; some flags take the next argument as their value."""
    words, flags, rest = [], {}, iter(arguments)
    for argument in rest:
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            takes = name in ("-f", "-k", "-l", "-o", "--context", "--namespace", "--raw")
            flags.setdefault(name, []).append(value if equals else next(rest) if takes else "")
        else:
            words.append(argument)
    return words, flags


def _fail(message: str, code: int = 1) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(code)


def _refuse(state: dict[str, Any], flags: dict[str, list[str]]) -> None:
    (context,) = flags.get("--context", ["gpu-cluster"])
    if context == "away":
        _fail("The connection to the server 10.1.2.3:6443 was refused - did you specify the right host or port?")
    if context != "gpu-cluster":
        _fail(f'error: context "{context}" does not exist')
    if state.get("logged_out"):
        _fail("error: You must be logged in to the server (Unauthorized)")


def _answer(state: dict[str, Any], words: list[str], flags: dict[str, list[str]]) -> tuple[str, int]:
    objects = state["objects"]
    match words:
        case ["get"] if "--raw" in flags:
            return _raw(state, flags["--raw"][0]), 0
        case ["get", "pods"]:
            name = flags["-l"][0].removeprefix("app.kubernetes.io/name=")
            return json.dumps({"kind": "List", "items": list(_pods(state, name))}), 0
        case ["get", "events"]:
            return json.dumps({"kind": "List", "items": state["events"]}), 0
        case ["get", "nodes"]:
            if "nodes" in state["denied"]:
                _fail('Error from server (Forbidden): nodes is forbidden: User "night" cannot list resource "nodes"')
            return json.dumps({"kind": "List", "items": [_node(state, name) for name in state["nodes"]]}), 0
        case ["get", name] if name.startswith("daemonset/") and "jsonpath" in flags["-o"][0]:
            return str(state["templates"][name.split("/")[1]][0]), 0
        case ["kustomize", folder]:
            return "\n---\n".join(_given({"-k": [folder]}).values()), 0
        case ["get", kind, name] if "jsonpath" in flags["-o"][0]:  # its label part-of
            _allowed(state, "get", f"{kind}s", name)
            found = json.loads(objects.get(f"{kind}/{name}", "{}"))
            return found.get("metadata", {}).get("labels", {}).get("app.kubernetes.io/part-of", ""), 0
        case ["get", kind, name]:  # one that may be there
            _allowed(state, "get", f"{kind}s", name)
            return (f"{kind}/{name}\n" if f"{kind}/{name}" in objects else ""), 0
        case ["get", kinds]:  # all of the kit's
            return "".join(f"{name}\n" for name in objects if _plural(name) in kinds.split(",")), 0
        case ["create"]:
            reviews = [each["spec"]["resourceAttributes"] for each in json.load(sys.stdin)["items"]]
            return "".join(f"{str(each['resource'] not in state['denied']).lower()}\n" for each in reviews), 0
        case ["apply"] if "--dry-run" in flags:
            return "".join(f"{name}\n" for name in _given(flags)), 0
        case ["apply"]:
            for name, text in _given(flags).items():
                _allowed(state, "patch", f"{name.split('/')[0]}s", name.split("/")[1])
                objects[name] = text
                if name.startswith("daemonset.apps/"):
                    _control(state, json.loads(text))
                print(f"{name} serverside-applied")
            return "", 0
        case ["diff"]:
            return _diff(state, _given(flags))
        case ["delete", *names]:
            sets = [name for name in map(_full, names) if name in objects and name.startswith("daemonset")]
            stay = [name for name in sets for pod in _pods(state, name.split("/")[1]) if _is_away(state, pod)]
            if stay and flags["--cascade"] == ["foreground"]:
                _fail(f"error: timed out waiting for the condition on {stay[0]}")
            found = [name for name in names if objects.pop(_full(name), None)]
            for name in found:
                state["generations"].pop(name.split("/")[1], None)
            return "".join(f"{name} deleted from verl-ingest namespace\n" for name in found), 0
        case ["rollout", "restart", name]:
            return f"{_full(name)} restarted\n", 0
        case ["rollout", "status", name]:
            return _status(state, name.split("/")[1])
    _fail(f"stand-in: unknown command {words}", 99)


def _node(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a node; Kubernetes itself puts taints on one that is not ready."""
    is_away = name in state["away"]
    effects = ("NoSchedule", "NoExecute") if is_away else ()
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in effects]
    taints += state["taints"].get(name, [])
    return {
        "metadata": {"name": name},
        "spec": {"taints": taints} if taints else {},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown" if is_away else "True"}]},
    }


def _raw(state: dict[str, Any], path: str) -> str:
    if path == "/version":
        major, minor = state["version"].removeprefix("v").split(".")[:2]
        return json.dumps({"major": major, "minor": minor, "gitVersion": state["version"]})
    pod = path.split("/")[6].partition(":")[0]
    if pod not in state["metrics"]:
        _fail("Error from server (ServiceUnavailable): the server is currently unable to handle the request")
    return state["metrics"][pod]


def _allowed(state: dict[str, Any], verb: str, resource: str, name: str) -> None:
    if resource in state["denied"]:
        who = f'User "night" cannot {verb} resource "{resource}" in API group "" in the namespace "verl-ingest"'
        _fail(f'Error from server (Forbidden): {resource} "{name}" is forbidden: {who}')


def _given(flags: dict[str, list[str]]) -> dict[str, str]:
    """Return the objects of -f or -k: name -> text, in the order of the files."""
    import yaml  # most commands need none, and a program is started for each

    if "-f" in flags:
        (file,) = flags["-f"]
        texts = [sys.stdin.read() if file == "-" else Path(file).read_text()]
    else:
        folder = Path(flags["-k"][0])
        kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
        texts = [(folder / name).read_text() for name in kustomization["resources"]]
        for each in kustomization["configMapGenerator"]:
            data = {Path(name).name: (folder / name).read_text() for name in each["files"]}
            texts.append(json.dumps({"kind": "ConfigMap", "metadata": {"name": each["name"]}, "data": data}))
    found = [each for text in texts for each in yaml.safe_load_all(text)]
    return {f"{KINDS[each['kind']]}/{each['metadata']['name']}": json.dumps(each) for each in found}


def _plural(name: str) -> str:
    """Return a resource as one asks for it: daemonset.apps/x -> daemonsets.apps."""
    kind, dot, group = name.split("/")[0].partition(".")
    return (f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s") + dot + group


def _full(name: str) -> str:
    """Return a name as kubectl prints it, with the kind's group."""
    kind, _, rest = name.partition("/")
    return next((f"{each}/{rest}" for each in KINDS.values() if each.split(".")[0] == kind), name)


def _diff(state: dict[str, Any], given: dict[str, str]) -> tuple[str, int]:
    if state.get("conflict"):
        _fail(
            'Error from server (Conflict): Apply failed with 1 conflict: conflict with "kubectl-edit" using v1: '
            ".data.settings.yml\nPlease review the fields above--they currently have other managers. Here\nare the",
            2,
        )
    assert os.environ["KUBECTL_EXTERNAL_DIFF"] == "diff -u -N"  # the user's own may print anything
    parts = []
    for name, text in given.items():
        kind = json.loads(text)["kind"]
        group = {"apps": "apps.", "batch": "batch."}.get(name.split("/")[0].partition(".")[2], "")
        file = f"{group}v1.{kind}.verl-ingest.{name.split('/')[1]}"
        if state["objects"].get(name) != text:
            is_new = name not in state["objects"]
            hunk = "@@ -5,7 +5,7 @@\n-x\n"
            if is_new:
                hunk = "@@ -1 +1,10 @@\n-null\n" if kind == "Secret" else "@@ -0,0 +1,29 @@\n"
            parts.append(f"diff -u -N /tmp/LIVE-26/{file} /tmp/MERGED-17/{file}\n--- /tmp/LIVE-26/{file}\n{hunk}+y\n")
    return "".join(parts), 1 if parts else 0


def _is_away(state: dict[str, Any], pod: dict[str, Any]) -> bool:
    return pod["spec"]["nodeName"] in state["away"]


def _control(state: dict[str, Any], daemon_set: dict[str, Any]) -> None:
    """Do what the DaemonSet controller does: a pod on each node that it is for, no more of them out than may be."""
    name, spec = daemon_set["metadata"]["name"], daemon_set["spec"]
    generation, template = state["templates"].get(name, (0, None))
    if template != spec["template"]:
        generation += 1
        state["templates"][name] = (generation, spec["template"])
    pods = state["generations"].setdefault(name, {})
    wanted = _wanted(state, spec)
    for node in wanted:
        pods.setdefault(node, generation)
    most = str(spec.get("updateStrategy", {}).get("rollingUpdate", {}).get("maxUnavailable", 1))
    most = math.ceil(len(wanted) * int(most[:-1]) / 100) if most.endswith("%") else int(most)
    # Old pods there are told to stop first of all, whatever may be out, and are out until their nodes are back.
    out = [node for node, own in pods.items() if node in state["away"] and own < generation]
    if most > len(out):
        pods.update({node: generation for node in wanted if node not in state["away"]})


def _wanted(state: dict[str, Any], spec: dict[str, Any]) -> list[str]:
    """Return the nodes that a DaemonSet is for; of those that are not ready only where it bears all taints."""
    bears_all = {"operator": "Exists"} in spec["template"]["spec"].get("tolerations", [])
    return [node for node in state["nodes"] if bears_all or node not in state["away"]]


def _pods(state: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    generations = state["generations"].get(name, {})
    nodes = generations or (state["nodes"][:1] if f"deployment.apps/{name}" in state["objects"] else ())
    for node in nodes:
        status = state["pods"].get(name, {}).get(node, AWAY if node in state["away"] else READY)
        metadata: dict[str, Any] = {"name": f"{name}-{node}"}
        if generations:
            metadata["labels"] = {"pod-template-generation": str(generations[node])}
            if generations[node] < state["templates"][name][0] and node in state["away"]:
                metadata["deletionTimestamp"] = "2026-11-29T20:37:23Z"
        yield {"metadata": metadata, "spec": {"nodeName": node}, "status": status}


def _status(state: dict[str, Any], name: str) -> tuple[str, int]:
    """Wait as kubectl does: for all nodes that a DaemonSet is for."""
    pods = list(_pods(state, name))
    if daemon_set := state["objects"].get(f"daemonset.apps/{name}"):
        wanted, generation = _wanted(state, json.loads(daemon_set)["spec"]), str(state["templates"][name][0])
        pods = [pod for pod in pods if pod["spec"]["nodeName"] in wanted]
        if old := [pod for pod in pods if pod["metadata"]["labels"]["pod-template-generation"] != generation]:
            new = len(pods) - len(old)
            print(f'Waiting for daemon set "{name}" rollout to finish: {new} out of {len(pods)} new pods have been...')
            _fail("error: timed out waiting for the condition")
    ready = [pod for pod in pods if {"type": "Ready", "status": "True"} in pod["status"].get("conditions", [])]
    if len(ready) == len(pods):
        return f'daemon set "{name}" successfully rolled out\n', 0
    print(
        f'Waiting for daemon set "{name}" rollout to finish: {len(ready)} of {len(pods)} updated pods are available...'
    )
    _fail("error: timed out waiting for the condition")
