"""Settings -> build/kubernetes: manifests for kustomize, the agent's folder, the settings of the kit's own pods.

The texts are those of templates/kubernetes; what varies is computed here. Not applied with the rest are once/, which is
there for as long as a canary or a removal takes, kuberay/, for whoever runs Ray, and rights.yaml, for an administrator.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_ingest import assets
from verl_ingest.edge import fluentbit, folder
from verl_ingest.errors import SettingsError
from verl_ingest.settings import Paths, Settings

AGENT, SERVICE, RETENTION, CANARY, REMOVAL = (
    f"verl-ingest-{name}" for name in ("agent", "service", "retention", "canary", "removal")
)
SECRET_KEY = "secret"
SERVICE_PORT = 9110
DROPS_REFUSED = (5, 1, 3)  # Fluent Bit, from which on agent.fluent_bit_513 holds

# What is rolled out, and what the one who does it must be allowed: resource -> verbs.
_ALL = ("get", "list", "watch", "create", "patch", "delete")
KINDS = ("daemonsets.apps", "deployments.apps", "cronjobs.batch", "services", "configmaps")
KINDS += ("networkpolicies.networking.k8s.io",)
RIGHTS = dict.fromkeys(KINDS, _ALL) | {
    "secrets": ("get", "create", "patch", "delete"),
    "serviceaccounts": ("get", "create", "patch"),
    "namespaces": ("get", "patch"),
    "pods": ("list",),
    "events": ("list",),
    "pods/proxy": ("get",),
}

_SECRET_FOLDER, _CA_FOLDER = "/run/secrets/verl-ingest", "/run/verl-ingest-ca"
_RAY_FOLDER, _RAY_LATEST = "/tmp/ray", "session_latest"
_RAY_LOGS = tuple(f"{_RAY_FOLDER}/{_RAY_LATEST}/logs/worker-*.{ending}" for ending in ("out", "err"))
_LOCKED = {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
_NOBODY = 65534  # for the kit's own pods, which read no files of the node

# Each pod finds its mark by its node's name; the file is removed when the pod is told to stop.
_WRITE = """\
if [ -e "/marks/$NODE.path" ]; then
  file=$(cat "/marks/$NODE.path")
  folder=$(dirname "$file")
  trap 'rm -f "$file"; rmdir -p "$folder" 2>/dev/null || true; exit 0' TERM
  mkdir -p "$folder"
  cat "/marks/$NODE.line" >> "$file"
fi"""
_WRITTEN = '[ ! -e "/marks/$NODE.path" ] || test -s "$(cat "/marks/$NODE.path")"'


def render(settings: Settings) -> dict[str, str]:
    """Return path -> text of every file; raises SettingsError for paths that pods can't have, or no CA file."""
    agent = for_agents(settings)
    agent_files = _below("agent", folder.files(agent))
    kit_files = {"kit/settings.yml": for_pods(settings)}
    ca = {"ca/ca.crt": folder.certificate(settings.elasticsearch_ca_certs)} if settings.elasticsearch_ca_certs else {}
    context = _context(agent) | {
        "agent_checksum": _checksum(agent_files | ca),
        "kit_checksum": _checksum(kit_files | ca),
        "config_maps": _config_maps({AGENT: agent_files, "verl-ingest-settings": kit_files, "verl-ingest-ca": ca}),
        "resources": _resources(settings),
    }
    manifests = {name: _text(name, context) for name in (*context["resources"], "kustomization.yaml", "rights.yaml")}
    return manifests | agent_files | kit_files | ca | _once(context) | _below("kuberay", _kuberay(settings, ca))


def for_agents(settings: Settings) -> Settings:
    """Return the settings with which an agent is rendered whose files lie where pods have them."""
    updates = {"metrics_listen": "0.0.0.0"}  # where the node and Prometheus ask
    updates |= {"secret_file": f"{_SECRET_FOLDER}/{SECRET_KEY}"} if has_secret(settings) else {}
    version = fluent_bit_version(settings.deploy.kubernetes.image)
    updates |= {"fluent_bit_513": True} if version and version >= DROPS_REFUSED else {}
    return settings.model_copy(update={"agent": settings.agent.model_copy(update=updates), **_ca_in_pod(settings)})


def for_pods(settings: Settings) -> str:
    """Return settings.yml for the kit's own pods: what is not default, without any login, which a Secret has."""
    values = settings.model_copy(update=_ca_in_pod(settings)).model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            **dict.fromkeys(("elasticsearch_username", "elasticsearch_password", "elasticsearch_api_key"), True),
            **dict.fromkeys(("agent", "deploy", "grafana"), True),
            "service": {"username", "password"},
        },
    )
    return "# Rendered from settings.yml; edit that.\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def has_secret(settings: Settings) -> bool:
    """Tell whether agents log in: with what the settings hand to them, or with what is in the cluster already."""
    return bool(settings.agent.secret_file or settings.deploy.secret_file)


def logs_in(settings: Settings) -> bool:
    """Tell whether the kit's own pods need a login."""
    known = (settings.elasticsearch_username, settings.elasticsearch_api_key, settings.service.username)
    return has_secret(settings) or any(known)


def node_selector(settings: Settings) -> dict[str, str]:
    """Return the labels of the nodes that get an agent."""
    return {"kubernetes.io/os": "linux"} | settings.deploy.kubernetes.node_selector


def fluent_bit_version(image: str) -> tuple[int, ...] | None:
    """Return the version in an image's tag, None where it tells none."""
    tag = re.search(r":v?(\d+)\.(\d+)\.(\d+)[^:/]*$", image.partition("@")[0])
    return tuple(map(int, tag.groups())) if tag else None


def log_folders(settings: Settings) -> list[str]:
    """Return the folders of the node that the agents' paths lie in, none within another.

    Raises SettingsError where a path has no constant folder to begin with.
    """
    found = sorted({_constant(path) for paths in settings.paths.model_dump().values() for path in paths})
    return [folder for folder in found if not any(folder.startswith(f"{other}/") for other in found)]


def with_room(manifests: str, *, ready: int, away: int) -> str:
    """Return the agents' DaemonSet of what kustomize prints, so that pods on nodes that are away don't hold it up.

    An old pod there is told to stop before any other, can't be stopped, and counts among those that may be out at a
    time (rollingUpdate of Kubernetes' pkg/controller/daemon/update.go): so many more may be.
    """
    [daemon_set] = [each for each in yaml.safe_load_all(manifests) if each["kind"] == "DaemonSet"]
    rolling = daemon_set["spec"]["updateStrategy"]["rollingUpdate"]
    rolling["maxUnavailable"] = math.ceil(ready * int(rolling["maxUnavailable"].rstrip("%")) / 100) + away
    return json.dumps(daemon_set)


def _constant(path: str) -> str:
    parts = path.split("/")[:-1]
    end = next((i for i, part in enumerate(parts) if re.search(r"[*?[{]", part) or part == _RAY_LATEST), len(parts))
    if end < 2:
        raise SettingsError(f"paths: {path} names no folder to begin with, which a pod could be given; name one.")
    return "/".join(parts[:end])


def _context(agent: Settings) -> dict[str, Any]:
    """Return what the templates have in common; `agent` are settings as of `for_agents`."""
    kubernetes = agent.deploy.kubernetes
    nobody = {"runAsUser": _NOBODY, "runAsGroup": _NOBODY, "runAsNonRoot": True}
    return {
        **kubernetes.model_dump(include={"namespace", "image", "kit_image", "user", "group"}),
        "node_selector": node_selector(agent),
        "tolerations": [each.model_dump(exclude_none=True) for each in kubernetes.tolerations],
        "non_root": kubernetes.user != 0,
        "pod_security": _user(agent) | {"fsGroup": kubernetes.group} | _SECCOMP,
        "kit_pod_security": nobody | _SECCOMP,
        "locked": _LOCKED,
        "state": agent.agent.state,
        "metrics_port": agent.agent.metrics_port,
        "forward_port": agent.agent.forward_port,
        "ports": {"metrics": agent.agent.metrics_port}
        | ({"forward": agent.agent.forward_port} if _forwards(agent) else {}),
        "log_folders": {f"logs-{number}": folder for number, folder in enumerate(log_folders(agent))},
        "given_files": _given_files(agent, secret_mode=0o440),
        "kit_files": [_config_map("verl-ingest-settings", "/etc/verl-ingest"), *_ca_files(agent)],
        "elasticsearch_port": fluentbit.context(agent)["server"]["port"],
        "service_port": SERVICE_PORT,
        "serves": agent.service_url is not None,
        "service_username": agent.service.username,
        "needs_no_secret": not logs_in(agent),
        "rights": RIGHTS,
    }


def _resources(settings: Settings) -> list[str]:
    """Return the manifests that these settings want, in the order in which they are applied."""
    wanted = {
        "namespace.yaml": True,
        "network.yaml": True,
        "agent.yaml": True,
        "forward.yaml": _forwards(settings),
        "service.yaml": settings.service_url is not None,
        "retention.yaml": settings.retention.days is not None,
    }
    return [name for name, is_wanted in wanted.items() if is_wanted]


def _once(context: Mapping[str, Any]) -> dict[str, str]:
    """Return the manifests of what is done once on each node.

    Their names end in .txt: kubectl, given a folder, reads none of them, and empties no state by accident.
    """
    logs = [_host_folder(name, folder, kind="Directory") for name, folder in context["log_folders"].items()]
    state = _host_folder("state", context["state"], kind="DirectoryOrCreate")
    canary = {
        "name": CANARY,
        "comment": "Writes a record on each node, as training does; the records are in the ConfigMap of this name.",
        "script": _WRITE,
        "is_done": _WRITTEN,
        "mounts": [_config_map(CANARY, "/marks"), *logs],
    }
    removal = {
        "name": REMOVAL,
        "comment": "Empties the agents' folder of offsets and waiting records on each node.",
        "script": f"find '{context['state']}' -mindepth 1 -delete",
        "is_done": f"[ -z \"$(ls -A '{context['state']}')\" ]",
        "mounts": [state],
    }
    return {
        f"once/{task['name'].removeprefix('verl-ingest-')}.yaml.txt": _text("once.yaml", {**context, **task})
        for task in (canary, removal)
    }


def _kuberay(settings: Settings, ca: Mapping[str, str]) -> dict[str, str]:
    """Return the kustomize component that puts an agent beside Ray in its own pods."""
    paths = Paths(rank=(), file_logger=(), console=(), rollout=(), ray=settings.paths.ray or _RAY_LOGS)
    agent = for_agents(settings.model_copy(update={"paths": paths, "node_scope": ("ray",)}))
    files = _below("agent", folder.files(agent))
    context = _context(agent) | {
        "config_maps": _config_maps({AGENT: files, "verl-ingest-ca": ca}),
        "given_files": _given_files(agent, secret_mode=0o444),  # Ray's pod may have another group
        "sidecar_security": _user(agent) | _LOCKED | _SECCOMP,
        "patches": {},
    }
    patches = {}
    for kind, cluster in (("RayCluster", "/spec"), ("RayJob", "/spec/rayClusterSpec")):
        for group, pod in (("head", "headGroupSpec"), ("worker", "workerGroupSpecs/0")):
            name = f"{kind.lower()}-{group}.yaml"
            context["patches"][name] = kind
            patches[name] = _text("kuberay-patch.yaml", {**context, "pod": f"{cluster}/{pod}/template/spec"})
    return {"kustomization.yaml": _text("kuberay-kustomization.yaml", context)} | patches | files | ca


def _user(settings: Settings) -> dict[str, Any]:
    kubernetes = settings.deploy.kubernetes
    return {"runAsUser": kubernetes.user, "runAsGroup": kubernetes.group, "runAsNonRoot": kubernetes.user != 0}


def _forwards(settings: Settings) -> bool:
    """Tell whether agents take records from other pods; on loopback only their own containers reach them."""
    return settings.agent.forward_listen not in ("127.0.0.1", "::1", "localhost")


def _text(name: str, context: Mapping[str, Any]) -> str:
    return assets.template(f"kubernetes/{name}.j2").render(context)


def _below(name: str, files: Mapping[str, str]) -> dict[str, str]:
    return {f"{name}/{file}": files[file] for file in sorted(files)}


def _config_maps(files: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    return {name: list(paths) for name, paths in files.items() if paths}


def _checksum(files: Mapping[str, str]) -> str:
    return hashlib.sha256("".join(f"{name}\n{text}\n" for name, text in sorted(files.items())).encode()).hexdigest()[
        :16
    ]


def _ca_in_pod(settings: Settings) -> dict[str, Path]:
    return {"elasticsearch_ca_certs": Path(_CA_FOLDER, "ca.crt")} if settings.elasticsearch_ca_certs else {}


def _config_map(name: str, folder: str) -> dict[str, Any]:
    return {"folder": folder, "volume": {"name": f"{name}-files", "configMap": {"name": name}}}


def _given_files(agent: Settings, *, secret_mode: int) -> list[dict[str, Any]]:
    """Return what an agent reads: its configuration, its secret, the certificate of the authority."""
    volume = {"name": "verl-ingest-secret", "secret": {"secretName": AGENT, "defaultMode": secret_mode}}
    secret = [{"folder": _SECRET_FOLDER, "volume": volume}] if has_secret(agent) else []
    return [_config_map(AGENT, "/etc/verl-ingest"), *secret, *_ca_files(agent)]


def _ca_files(settings: Settings) -> list[dict[str, Any]]:
    return [_config_map("verl-ingest-ca", _CA_FOLDER)] if settings.elasticsearch_ca_certs else []


def _host_folder(name: str, folder: str, *, kind: str) -> dict[str, Any]:
    return {"folder": folder, "volume": {"name": name, "hostPath": {"path": folder, "type": kind}}}
