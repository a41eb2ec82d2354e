"""A cluster that kubectl speaks to in tests, the target that is rolled out to it, and pods that do not run."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stand_ins.kubectl import READY, Cluster
from verl_ingest import render
from verl_ingest.cluster import kubernetes
from verl_ingest.cluster.kubernetes import Kubernetes
from verl_ingest.settings import Settings

METRICS = """\
2026-12-22T18:41:01.000000001Z fluentbit_build_info{hostname="gpu-0",version="5.1.4",os="linux"} = 1797984000
2026-12-22T18:41:01.000000001Z fluentbit_uptime{hostname="gpu-0"} = 61
2026-12-22T18:41:00.000000001Z fluentbit_output_proc_records_total{name="records"} = 120
2026-12-22T18:41:00.000000001Z fluentbit_output_proc_records_total{name="samples"} = 3
"""


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


def only_container(manifest: Path) -> dict[str, Any]:
    (container,) = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"]["containers"]
    return container
