"""A DaemonSet in a Kubernetes cluster, by kubectl.

Everything is applied by the server itself (--server-side): the Lua files are nearly too large for the copy that kubectl
would keep in an annotation otherwise, and a Secret must not be copied there. What others changed by hand is a conflict
then, and refused.
"""

import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, ClassVar
from urllib.parse import urlsplit

from verl_ingest.checks.check import Check
from verl_ingest.cluster import commands, kubernetes_files, kubernetes_nodes, kubernetes_pods
from verl_ingest.cluster.kubernetes_answers import output, words
from verl_ingest.cluster.kubernetes_files import AGENT, CANARY, KINDS, REMOVAL, RETENTION, RIGHTS, SECRET_KEY, SERVICE
from verl_ingest.cluster.kubernetes_pods import Pod
from verl_ingest.cluster.mark import Mark
from verl_ingest.cluster.target import Node, answering
from verl_ingest.context.words import counted, several
from verl_ingest.errors import KitError, SettingsError
from verl_ingest.lag import metrics
from verl_ingest.settings import Settings

OLDEST = (1, 26)  # the first with internalTrafficPolicy
ROLL_OUT_S = 900  # thousands of nodes go ten in a hundred at a time
GONE_S = 300  # for what is deleted to be gone
STEP_S = 10  # between two looks at what can't start
ANSWER_S = 20
AT_ONCE = 16  # requests
PART_OF = "app.kubernetes.io/part-of=verl-ingest"
_DIFFERENCE = re.compile(r"^diff .*/(?:\S+\.)?v\d\w*\.(?P<kind>\w+)\.[^.\s]*\.(?P<name>\S+)$", re.MULTILINE)
_NEW = re.compile("^(@@ -0,0 |-null$)", re.MULTILINE)  # the latter for a Secret, which kubectl masks


@dataclass(frozen=True)
class Kubernetes:
    """The cluster of `deploy.kubernetes`."""

    settings: Settings
    name: ClassVar[str] = "kubernetes"
    hands_out_secret: ClassVar[bool] = True

    def files(self) -> Mapping[str, str]:
        """Return what build/kubernetes holds; raises SettingsError for paths that pods can't have."""
        return kubernetes_files.render(self.settings)

    def check(self, folder: Path) -> Sequence[Check]:
        """Look at the cluster's version, nodes and rights, at the images and at what the settings want to be there."""
        answer = json.loads(self._kubectl("get", "--raw", "/version", what="Asking the cluster for its version"))
        version = tuple(int(re.sub(r"\D", "", answer[part])) for part in ("major", "minor"))  # some say "31+"
        is_old = version < OLDEST
        remedy = f"update it to {OLDEST[0]}.{OLDEST[1]} or later" if is_old else ""
        lacking = self._lacking(RIGHTS)
        if not lacking and not self._has("namespace", self._namespace):
            lacking = self._lacking({"namespaces": ("create",)})
        return [
            Check("cluster", "wrong" if is_old else "fine", f"Kubernetes {answer['gitVersion']} answers.", remedy),
            self._rights(lacking),
            *self._selected(),
            *(() if lacking else self._secrets()),
            *self._images(),
            *_address(self.settings),
        ]

    def plan(self, folder: Path) -> Sequence[str]:
        """Return a line for each object that is to be made, changed or removed."""
        secret, has_namespace = self._secret(), self._has("namespace", self._namespace)
        wanted = self._kubectl("apply", "-k", folder, "--dry-run=client", "-o", "name", what="Reading build/kubernetes")
        if not has_namespace:
            return [f"{name}: new" for name in (*wanted.split(), *([f"secret/{AGENT}"] if secret else []))]
        return [
            *self._differences("-k", folder),
            *(self._differences("-f", "-", given=secret) if secret else []),
            *(f"{name}: to be removed" for name in self._ours() if name not in wanted.split()),
        ]

    def roll_out(self, folder: Path) -> Sequence[str]:
        """Apply what differs, remove what is not wanted any more, and wait until all agents and the service run.

        Those on nodes that are not ready are not waited for.
        """
        changes, secret, away = self.plan(folder), self._secret(), self._not_ready()
        self._apply("-f", folder / "namespace.yaml")
        if secret:
            self._apply("-f", "-", given=secret)
        self._apply("-k", folder)
        if away:
            self._make_room(folder, away)
        if leftovers := [line.removesuffix(": to be removed") for line in changes if line.endswith(": to be removed")]:
            self._delete(*leftovers)
        if f"Secret {AGENT}: changed" in changes:  # it is read at the start alone
            self._kubectl("rollout", "restart", f"daemonset/{AGENT}", what="Restarting the agents with their secret")
        self._await("daemonset", AGENT)
        if self.settings.service_url:
            self._await("deployment", SERVICE)
        if not away:
            return changes
        self._apply("-k", folder)  # as many may be out as before
        later = "not ready, so nothing was changed there; Kubernetes does it by itself when the node is back"
        return [*changes, f"{several(away)}: {later}"]

    def nodes(self, folder: Path) -> Sequence[Node]:
        """Ask each agent through the cluster's own server."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._ask, self._pods(AGENT)))

    def tried(self, folder: Path) -> Sequence[str]:
        """Return every node that is ready, each of which must have an agent that answers."""
        not_ready = self._not_ready()
        return answering([node for node in self.nodes(folder) if node.name not in not_ready])

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Write each node's mark from a pod there that has the log folders, as the user of the agents."""
        data = {f"{node}.{part}": text for node, mark in marks.items() for part, text in _parts(mark)}
        self.erase(folder, marks)  # an earlier try may have been stopped half-way
        self._apply("-f", "-", given=_manifest("ConfigMap", CANARY, data=data))
        self._apply("-f", folder / "once" / "canary.yaml.txt")
        self._await("daemonset", CANARY)

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Stop the pods that wrote the marks; each of them removes its file then."""
        self._delete(f"daemonset/{CANARY}", f"configmap/{CANARY}")

    def remove(self, folder: Path, *, state: bool) -> Sequence[str]:
        """Remove all that `roll_out` has made but the namespace; with `state` also empty the folders on the nodes."""
        if not self._has("namespace", self._namespace):
            return []
        names = self._ours()
        if self._has_handed_out_secret():
            names.append(f"secret/{AGENT}")
        self._delete(*names)
        lines = [f"{name}: removed" for name in names]
        if state:
            self._apply("-f", folder / "once" / "removal.yaml.txt")
            self._await("daemonset", REMOVAL)
            self._delete(f"daemonset/{REMOVAL}")
            lines.append(f"{self.settings.agent.state} on each node: emptied")
        if lines:
            stays = f"the namespace {self._namespace} stays, with its service account and Secrets that you made"
            lines.append(f"{stays}; remove it with `kubectl delete namespace {self._namespace}`")
        return lines

    # ---- what check looks at

    def _lacking(self, rights: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return which of the rights (resource -> verbs) the user does not have, in one request for all of them."""
        asked = [(resource, verb) for resource, verbs in rights.items() for verb in verbs]
        reviews = {"apiVersion": "v1", "kind": "List", "items": [_review(self._namespace, *each) for each in asked]}
        answers = self._kubectl(
            *("create", "-f", "-", "-o", r"jsonpath={.status.allowed}{'\n'}"),
            given=json.dumps(reviews),
            what="Asking for your rights",
        )
        found: dict[str, list[str]] = {}
        for (resource, verb), answer in zip(asked, answers.split(), strict=True):
            if answer != "true":
                found.setdefault(resource, []).append(verb)
        return found

    def _rights(self, lacking: Mapping[str, Sequence[str]]) -> Check:
        if not lacking:
            return Check("rights", "fine", "Your user may do all that this takes.")
        found = "; ".join(f"{resource} ({', '.join(verbs)})" for resource, verbs in lacking.items())
        remedy = "have them given to it; build/kubernetes/rights.yaml is a Role with them"
        return Check("rights", "wrong", f"Your user lacks rights in the namespace {self._namespace}: {found}.", remedy)

    def _selected(self) -> Iterator[Check]:
        done = self._list_nodes()
        if done.returncode:
            found = f"Nodes can't be listed ({words(done)}), so none that gets no agent is told."
            remedy = "have `list nodes` given to you, or count the nodes that `deploy` names at its end"
            yield Check("nodes", "unknown", found, remedy)
            return
        listed = json.loads(done.stdout)
        nodes = kubernetes_nodes.names(listed)
        remedy = "" if nodes else "mend deploy.kubernetes.node_selector"
        found = f"The labels {self._labels} are those of {counted(len(nodes), 'node')}."
        yield Check("nodes", "fine" if nodes else "wrong", found, remedy)
        if away := kubernetes_nodes.not_ready(listed):
            found = f"Of {len(nodes)}, these are not ready: {several(away)}; no record is tried there."
            yield Check("nodes", "watch", found, "see `kubectl describe node`")
        if kept_off := kubernetes_nodes.tainted(listed, self.settings.deploy.kubernetes.tolerations):
            taints = several([f"{node} ({taint})" for node, taint in kept_off.items()])
            found = f"Of {len(nodes)}, these get no agent since they have taints: {taints}."
            yield Check("nodes", "watch", found, "if they should, name the taints in deploy.kubernetes.tolerations")

    def _secrets(self) -> Iterator[Check]:
        settings = self.settings
        wanted = {
            AGENT: kubernetes_files.has_secret(settings) and not settings.deploy.secret_file,
            SERVICE: kubernetes_files.logs_in(settings) and settings.service_url is not None,
            RETENTION: kubernetes_files.logs_in(settings) and settings.retention.days is not None,
        }
        make = f"make it: kubectl create secret generic --namespace {self._namespace} --from-env-file=FILE"
        for name in (name for name, is_wanted in wanted.items() if is_wanted):
            if self._has("secret", name):
                yield Check("secrets", "fine", f"The Secret {name} is there.")
            else:
                remedy = "set deploy.secret_file" if name == AGENT else f"{make} {name}"
                yield Check("secrets", "wrong", f"There is no Secret {name} in {self._namespace}.", remedy)

    def _images(self) -> Iterator[Check]:
        kubernetes = self.settings.deploy.kubernetes
        version = kubernetes_files.fluent_bit_version(kubernetes.image)
        if version is None:
            found = f"The tag of {kubernetes.image} tells no version of Fluent Bit."
            yield Check("Fluent Bit", "unknown", found, "name one by its version in deploy.kubernetes.image")
        elif version < kubernetes_files.DROPS_REFUSED:
            found = f"{kubernetes.image} retries a chunk that is wholly refused for ever."
            yield Check("Fluent Bit", "watch", found, "set deploy.kubernetes.image to 5.1.3 or later")
        else:
            yield Check("Fluent Bit", "fine", f"{kubernetes.image} has no known trap.")
        name = kubernetes.kit_image.rpartition("/")[2]
        if ":" not in name or name.endswith(":latest"):
            found = f"{kubernetes.kit_image} names no version, so nodes keep the one they have when it is built anew."
            yield Check("image", "watch", found, "give each build a tag of its own in deploy.kubernetes.kit_image")
        if "/" not in kubernetes.kit_image:
            found = f"{kubernetes.kit_image} names no registry, so nodes must have it already."
            yield Check("image", "watch", found, "push it to your registry, and set deploy.kubernetes.kit_image")

    # ---- kubectl

    @property
    def _namespace(self) -> str:
        return self.settings.deploy.kubernetes.namespace

    def _attempt(self, *arguments: str | Path, given: str | None = None) -> CompletedProcess[str]:
        """Return how a kubectl command ended, whatever its exit code."""
        context = self.settings.deploy.kubernetes.context
        flags = [*(["--context", context] if context else []), "--namespace", self._namespace]
        limits = () if arguments[0] in ("rollout", "delete") else (f"--request-timeout={ANSWER_S}s",)  # those two wait
        return commands.attempt(
            ["kubectl", *flags, *limits, *map(str, arguments)],
            what="Kubernetes",
            remedy="see that the cluster answers",
            environment=os.environ | {"KUBECTL_EXTERNAL_DIFF": "diff -u -N"},
            given=given,
        )

    def _kubectl(self, *arguments: str | Path, what: str, given: str | None = None) -> str:
        """Return what a kubectl command prints; raises KitError with a remedy where it fails."""
        return output(self._attempt(*arguments, given=given), what)

    def _apply(self, *arguments: str | Path, given: str | None = None) -> None:
        self._kubectl(
            "apply",
            "--server-side",
            "--field-manager=verl-ingest",
            *arguments,
            given=given,
            what="Applying the manifests",
        )

    def _delete(self, *names: str) -> None:
        """Delete objects that may be there, and wait until their pods are gone, if no node is away: its pods stay."""
        if names:
            cascade = "background" if self._not_ready() else "foreground"
            options = ("--ignore-not-found", f"--cascade={cascade}", f"--timeout={GONE_S}s")
            self._kubectl("delete", *options, *names, what="Removing what is not wanted any more")

    @property
    def _labels(self) -> str:
        return ",".join(f"{name}={value}" for name, value in kubernetes_files.node_selector(self.settings).items())

    def _list_nodes(self) -> CompletedProcess[str]:
        """Return the selected nodes as JSON; it is refused to those who may do no more than a Role says."""
        return self._attempt("get", "nodes", "-l", self._labels, "-o", "json")

    def _not_ready(self) -> list[str]:
        """Return the selected nodes that are not ready; none where nodes can't be listed."""
        done = self._list_nodes()
        return [] if done.returncode else kubernetes_nodes.not_ready(json.loads(done.stdout))

    def _make_room(self, folder: Path, away: Sequence[str]) -> None:
        """Let so many more agents be out at a time as their nodes are not ready, for as long as a roll-out takes."""
        manifests = self._kubectl("kustomize", folder, what="Reading build/kubernetes")
        ready = self._with_agents()
        self._apply("-f", "-", given=kubernetes_files.with_room(manifests, ready=len(ready), away=len(away)))

    def _with_agents(self) -> list[str]:
        """Return the nodes that get an agent now."""
        listed = json.loads(output(self._list_nodes(), "Looking for the nodes"))
        return kubernetes_nodes.with_agents(listed, self.settings.deploy.kubernetes.tolerations)

    def _has(self, kind: str, name: str) -> bool:
        return bool(self._kubectl("get", kind, name, "--ignore-not-found", "-o", "name", what=f"Looking for a {kind}"))

    def _has_handed_out_secret(self) -> bool:
        """Tell whether there is a secret of the agents that `roll_out` has made, be it with former settings."""
        path = r"jsonpath={.metadata.labels.app\.kubernetes\.io/part-of}"
        label = self._kubectl("get", "secret", AGENT, "--ignore-not-found", "-o", path, what="Looking for a secret")
        return label == PART_OF.partition("=")[2]

    def _ours(self) -> list[str]:
        """Return the names of the objects that the kit has made, as kubectl prints them."""
        return self._kubectl(
            "get", ",".join(KINDS), "-l", PART_OF, "-o", "name", what="Looking for what is there"
        ).split()

    def _differences(self, *arguments: str | Path, given: str | None = None) -> list[str]:
        """Return a line for each object that an apply would make or change; exit code 1 says that there are some."""
        done = self._attempt("diff", "--server-side", "--field-manager=verl-ingest", *arguments, given=given)
        if done.returncode != 1 or not done.stdout:
            output(done, "Comparing with what is there")
        parts = re.split(r"^(?=diff )", done.stdout, flags=re.MULTILINE)
        found = [(match, _NEW.search(part)) for part in parts if (match := _DIFFERENCE.search(part))]
        return [f"{match['kind']} {match['name']}: {'new' if is_new else 'changed'}" for match, is_new in found]

    def _secret(self) -> str | None:
        """Return the manifest of the agents' secret where the settings hand one over; it is never written to a file."""
        path = self.settings.deploy.secret_file
        if path is None:
            return None
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise SettingsError(f"deploy.secret_file: {path} can't be read: {error.strerror}.") from None
        return _manifest("Secret", AGENT, data={SECRET_KEY: b64encode(secret).decode()})

    def _pods(self, label: str) -> list[Pod]:
        what = "Asking for the pods"
        pods = self._kubectl("get", "pods", "-l", f"app.kubernetes.io/name={label}", "-o", "json", what=what)
        events = self._kubectl("get", "events", "--field-selector=type=Warning", "-o", "json", what=what)
        return kubernetes_pods.read(json.loads(pods), json.loads(events), not_ready=self._not_ready())

    def _await(self, kind: str, name: str) -> None:
        """Wait until every pod is ready; raises KitError on what can't become so, or after ROLL_OUT_S seconds."""
        deadline = time.monotonic() + ROLL_OUT_S
        while True:
            done = self._attempt("rollout", "status", f"{kind}/{name}", f"--timeout={STEP_S}s")
            if done.returncode == 0:
                return
            if "timed out" not in done.stderr:
                output(done, f"Waiting for {name}")
            pods = self._pods(name)
            if kind == "daemonset" and any(pod.is_away for pod in pods):
                pods = [pod for pod in pods if not pod.is_away]
                if self._have_new_pod(name, pods):
                    return
            waiting = sorted((pod for pod in pods if pod.problem), key=lambda pod: not pod.is_stuck)
            if time.monotonic() > deadline or (waiting and waiting[0].is_stuck):
                why = waiting[0].problem if waiting else f"See `kubectl describe {kind} {name}`."
                raise KitError(f"{len(pods) - len(waiting)} of {len(pods)} pods of {name} are ready: {why}")

    def _have_new_pod(self, name: str, pods: Sequence[Pod]) -> bool:
        """Tell whether all nodes that get an agent now have it; kubectl waits for others where tolerations fit them."""
        path = r"jsonpath={.metadata.annotations.deprecated\.daemonset\.template\.generation}"  # of any version
        template = self._kubectl("get", f"daemonset/{name}", "-o", path, what=f"Looking at {name}")
        new = {pod.node for pod in pods if not pod.problem and pod.template == template}
        return new.issuperset(self._with_agents())

    def _ask(self, pod: Pod) -> Node:
        """Ask one agent for its counters."""
        if not pod.runs:
            return Node(pod.node or pod.name, None, pod.problem)
        port = self.settings.agent.metrics_port
        path = f"/api/v1/namespaces/{self._namespace}/pods/{pod.name}:{port}/proxy{metrics.PATH}"
        done = self._attempt("get", "--raw", path)
        if done.returncode or not metrics.is_fluent_bits(done.stdout):
            why = f"The agent in the pod {pod.name} does not answer ({words(done)}); see `kubectl logs {pod.name}`."
            return Node(pod.node, None, pod.problem or why)
        return Node(pod.node, metrics.parse(done.stdout))


def _address(settings: Settings) -> Iterator[Check]:
    """Warn of an address that is another one in a pod."""
    if urlsplit(settings.elasticsearch_url).hostname in ("localhost", "127.0.0.1", "::1"):
        found = f"elasticsearch_url is {settings.elasticsearch_url}, which in a pod is the pod itself."
        yield Check("address", "wrong", found, "set it to what pods reach Elasticsearch at")


def _review(namespace: str, resource: str, verb: str) -> dict[str, Any]:
    """Return the question whether one may do something."""
    name, _, group = resource.partition(".")
    name, _, part = name.partition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    return kind | {"spec": {"resourceAttributes": attributes}}


def _parts(mark: Mark) -> tuple[tuple[str, str], ...]:
    return ("path", mark.path), ("line", f"{mark.line}\n")


def _manifest(kind: str, name: str, *, data: Mapping[str, str]) -> str:
    label, _, value = PART_OF.partition("=")
    metadata: dict[str, Any] = {"name": name, "labels": {label: value}}
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data})
