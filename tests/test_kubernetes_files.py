"""What is rolled out to Kubernetes: sound for its schemas, put together by kustomize, locked, without a secret."""

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests import fluentbit
from tests.waiting import wait_for
from verl_ingest import render, settings
from verl_ingest.cluster import kubernetes_files
from verl_ingest.edge import lint, trial
from verl_ingest.errors import SettingsError
from verl_ingest.settings import Settings

VERSIONS = ("1.28", "1.31", "1.34", kubernetes_validate.latest_version())
SECRETS = ("pa55-of-the-server", "pa55-of-the-pages", "glsa_pa55", "pa55-of-grafana")
TLS = {"elasticsearch_url": "https://es.example.org/logs", "elasticsearch_ca_certs": "ca.pem"}
LOGIN = {"elasticsearch_username": "admin", "elasticsearch_password": SECRETS[0]}
FLEET = {
    **TLS,
    **LOGIN,
    "agent": {"username": "verl_writer", "secret_file": "/etc/secret", "forward_listen": "0.0.0.0", "poll": True},
    "paths": {"ray": ["/tmp/ray/session_latest/logs/worker-*.out"], "rollout": ["/scratch/{run}/[0-9]*.jsonl"]},
    "run": 'odd "name"\n',
    "retention": {"days": 30},
    "service_url": "https://kit.example.org",
    "service": {"username": "night", "password": SECRETS[1], "proxies": ["10.0.0.0/8"]},
    "grafana": {"token": SECRETS[2], "elasticsearch_api_key": SECRETS[3]},
    "timezone": "Asia/Shanghai",
    "deploy": {
        "kubernetes": {
            "namespace": "ml-logs",
            "node_selector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [{"key": "team", "value": "rl", "effect": "NoSchedule"}, {"operator": "Exists"}],
            "image": "registry.example.org:5000/fluent-bit:5.1.4@sha256:abc",
            "kit_image": "registry.example.org:5000/verl-ingest:1.2.3",
        }
    },
}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "key": {**TLS, "elasticsearch_api_key": SECRETS[0], "deploy": {"secret_file": "key.txt"}},
    "root": {"deploy": {"kubernetes": {"user": 0, "group": 0}}, "service_url": "http://kit.example.org"},
    "fleet": FLEET,
}


@pytest.fixture(params=VARIANTS)
def chosen(request, tmp_path, monkeypatch) -> Settings:
    """Settings of each kind, in a folder that has the files they name."""
    return of(VARIANTS[request.param], tmp_path, monkeypatch)


def of(values: Mapping[str, Any], place: Path, monkeypatch) -> Settings:
    monkeypatch.chdir(place)
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)
    (place / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    (place / "key.txt").write_text(SECRETS[0])
    return Settings(**values)


def manifests(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return every object that is applied: "Kind name" -> object."""
    texts = [text for name, text in files.items() if re.fullmatch(r"[a-z]+\.yaml|once/[a-z]+\.yaml\.txt", name)]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in objects("\n---\n".join(texts))}


def objects(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each and each["kind"] not in ("Kustomization", "Component")]


def pods(found: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, each in found.items():
        spec = each.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield name, spec["template"]["spec"]


def is_valid(manifest: dict[str, Any], versions: tuple[str, ...] = VERSIONS) -> None:
    for version in versions:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_kubernetes_schemas_accept_every_manifest(chosen):
    found = manifests(kubernetes_files.render(chosen))
    assert {"DaemonSet verl-ingest-agent", "DaemonSet verl-ingest-canary", "DaemonSet verl-ingest-removal"} <= {*found}
    for each in found.values():
        is_valid(each)


def test_what_empties_the_state_is_in_no_file_that_kubectl_finds_in_a_folder(chosen):
    files = kubernetes_files.render(chosen)
    assert "-delete" in files["once/removal.yaml.txt"]
    for name, text in files.items():
        if name.endswith((".yaml", ".yml", ".json")):
            assert "-delete" not in text and "name: verl-ingest-canary" not in text, name


def test_all_that_runs_on_nodes_bears_the_taints_that_the_settings_name(chosen):
    found = dict(pods(manifests(kubernetes_files.render(chosen))))
    wanted = [each.model_dump(exclude_none=True) for each in chosen.deploy.kubernetes.tolerations]
    for name in ("agent", "canary", "removal"):
        assert found[f"DaemonSet verl-ingest-{name}"]["tolerations"] == wanted


def test_a_misspelt_key_would_be_found(chosen):
    daemon_set = manifests(kubernetes_files.render(chosen))["DaemonSet verl-ingest-agent"]
    daemon_set["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        is_valid(daemon_set)


def test_every_container_is_locked_and_limited(chosen):
    for name, pod in pods(manifests(kubernetes_files.render(chosen))):
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True and security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"]["drop"] == ["ALL"] and "privileged" not in security
            assert {"cpu", "memory"} == {*container["resources"]["limits"]} == {*container["resources"]["requests"]}
            assert ":" in container["image"].rpartition("/")[2], f"{name}: an image without a version"


def test_only_the_state_is_writable_for_the_agent(chosen):
    pod = dict(pods(manifests(kubernetes_files.render(chosen))))["DaemonSet verl-ingest-agent"]
    (agent,) = pod["containers"]
    assert [mount["mountPath"] for mount in agent["volumeMounts"] if not mount.get("readOnly")] == [
        "/var/lib/verl-ingest"
    ]
    is_root = chosen.deploy.kubernetes.user == 0
    assert pod["securityContext"]["runAsNonRoot"] is not is_root
    assert ("initContainers" in pod) is not is_root  # Kubernetes makes the folder for root


def test_kubernetes_waits_longer_for_an_agent_than_the_agent_for_its_requests(chosen):
    files = kubernetes_files.render(chosen)
    pod = dict(pods(manifests(files)))["DaemonSet verl-ingest-agent"]
    grace = int(lint.parse(files["agent/fluent-bit.yaml"], "agent")["service"]["grace"])
    assert pod["terminationGracePeriodSeconds"] > grace


def test_nothing_rendered_has_a_secret_in_it(chosen):
    for name, text in kubernetes_files.render(chosen).items():
        assert not [secret for secret in SECRETS if secret in text], name


def test_the_agents_configuration_is_the_one_for_pods(chosen):
    files = kubernetes_files.render(chosen)
    for folder in ("agent", "kuberay/agent"):
        config = lint.parse(files[f"{folder}/fluent-bit.yaml"], folder)
        assert lint.problems(config) == []
        assert config["service"]["http_listen"] == "0.0.0.0"  # probes come from the node
        if kubernetes_files.has_secret(chosen):
            assert config["env"] == {"ELASTICSEARCH_SECRET": "file:///run/secrets/verl-ingest/secret"}
        if chosen.elasticsearch_ca_certs:
            assert config["pipeline"]["outputs"][0]["tls.ca_file"] == "/run/verl-ingest-ca/ca.crt"
        assert config["pipeline"]["outputs"][0]["drop_unrecoverable_records"] == "on"  # by the image's tag
    assert {each["alias"] for each in config["pipeline"]["inputs"]} == {"ray", "forward"}


def test_what_is_mounted_are_the_folders_that_the_paths_begin_with(tmp_path, monkeypatch):
    def folders(**paths: list[str]) -> list[str]:
        none = {"rank": [], "file_logger": [], "console": [], "rollout": []}
        return kubernetes_files.log_folders(of({"paths": none | paths}, tmp_path, monkeypatch))

    assert folders(rank=["/data/runs/{run}/logs/*.jsonl"]) == ["/data/runs"]
    assert folders(rank=["/data/runs/{run}/*.jsonl"], console=["/data/{run}/a.log"]) == ["/data"]
    assert folders(rank=["/data/a/{run}/*"], console=["/data/ab/{run}/*"]) == ["/data/a", "/data/ab"]
    assert folders(rank=["/data/team-?/{run}/*"]) == ["/data"]
    assert folders(ray=["/tmp/ray/session_latest/logs/worker-*.out"]) == ["/tmp/ray"]  # Ray moves session_latest
    with pytest.raises(SettingsError, match="names no folder to begin with"):
        folders(rank=["/{run}/logs/*.jsonl"])


def test_another_configuration_restarts_the_agents_and_nothing_else(tmp_path, monkeypatch):
    def checksums(values: dict[str, Any]) -> list[str]:
        found = manifests(kubernetes_files.render(of(values, tmp_path, monkeypatch)))
        wanted = ("DaemonSet verl-ingest-agent", "Deployment verl-ingest-service")
        return [found[name]["spec"]["template"]["metadata"]["annotations"]["verl-ingest/checksum"] for name in wanted]

    before = checksums({"service_url": "http://kit"})
    assert checksums({"service_url": "http://kit"}) == before
    assert checksums({"service_url": "http://kit", "deploy": {"canary_s": 5}}) == before
    poll = checksums({"service_url": "http://kit", "agent": {"poll": True}})
    assert poll[0] != before[0] and poll[1] == before[1]


def test_the_forward_port_is_open_to_other_pods_only_where_it_listens_to_them(tmp_path, monkeypatch):
    closed = manifests(kubernetes_files.render(of({}, tmp_path, monkeypatch)))
    assert "Service verl-ingest-agent" not in closed
    assert [port["port"] for port in _ingress(closed, "verl-ingest-agent")] == [2020]
    opened = manifests(kubernetes_files.render(of({"agent": {"forward_listen": "0.0.0.0"}}, tmp_path, monkeypatch)))
    assert opened["Service verl-ingest-agent"]["spec"]["internalTrafficPolicy"] == "Local"
    assert [port["port"] for port in _ingress(opened, "verl-ingest-agent")] == [2020, 24224]


def test_pods_may_only_ask_for_names_and_elasticsearch(chosen):
    policy = manifests(kubernetes_files.render(chosen))["NetworkPolicy verl-ingest"]["spec"]
    server = 443 if chosen.elasticsearch_ca_certs else 9200
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == [53, 53, server]
    assert "ingress" not in policy and policy["policyTypes"] == ["Ingress", "Egress"]


def _ingress(found: Mapping[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return found[f"NetworkPolicy {name}"]["spec"]["ingress"][0]["ports"]


def test_the_kits_own_pods_read_the_same_settings_and_have_the_login_from_a_secret(tmp_path, monkeypatch):
    fleet = of(FLEET, tmp_path, monkeypatch)
    found = manifests(kubernetes_files.render(fleet))
    (tmp_path / "pod.yml").write_text(kubernetes_files.for_pods(fleet))
    for name in ("USERNAME", "PASSWORD"):
        monkeypatch.setenv(f"ELASTICSEARCH_{name}", "reader")  # of the Secret
    read = settings.load(tmp_path / "pod.yml")
    for name in ("elasticsearch_url", "paths", "run", "retention", "service_url", "timezone"):
        assert getattr(read, name) == getattr(fleet, name), name
    ((service,), _) = (pod["containers"] for _, pod in pods(found) if "envFrom" in pod["containers"][0])
    for each in service["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    with pytest.raises(SettingsError, match=r"service\.username and service\.password go together"):
        settings.load(tmp_path / "pod.yml")  # without its Secret it does not start, instead of pages open to all
    monkeypatch.setenv("VERL_INGEST_SERVICE__PASSWORD", SECRETS[1])
    assert settings.load(tmp_path / "pod.yml").service == fleet.service
    for name, pod in pods(found):
        for source in (each for container in pod["containers"] for each in container.get("envFrom", [])):
            assert source["secretRef"]["optional"] is False, name
    assert {"Deployment verl-ingest-service", "CronJob verl-ingest-retention"} <= {*found}


# ---- kustomize


@pytest.fixture(scope="session")
def kustomize() -> list[str]:
    """The command that builds a folder; skips where there is none."""
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if shutil.which("kubectl") is None:
        pytest.skip("no kustomize: put kubectl 1.27 or later, or kustomize, on the PATH")
    version = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, text=True)
    if not re.match("v[5-9]", json.loads(version.stdout).get("kustomizeVersion", "")):
        pytest.skip("this kubectl has no kustomize of version 5; put 1.27 or later on the PATH")
    return ["kubectl", "kustomize"]


def built(command: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {f"{each['kind']} {each['metadata']['name']}": each for each in objects(done.stdout)}


def test_kustomize_puts_it_together(chosen, kustomize, tmp_path):
    files = kubernetes_files.render(chosen)
    render.write(tmp_path / "build", files)
    found = built(kustomize, tmp_path / "build")
    others = {"DaemonSet verl-ingest-canary", "DaemonSet verl-ingest-removal", "Role verl-ingest-deploy"}
    maps = {"ConfigMap verl-ingest-agent", "ConfigMap verl-ingest-settings"}
    maps |= {"ConfigMap verl-ingest-ca"} if chosen.elasticsearch_ca_certs else set()
    assert {*found} == ({*manifests(files)} - others) | maps
    for name, each in found.items():
        is_valid(each, VERSIONS[-1:])
        assert each["metadata"]["labels"]["app.kubernetes.io/part-of"] == "verl-ingest", name
        namespace = each["metadata"]["name"] if each["kind"] == "Namespace" else each["metadata"]["namespace"]
        assert namespace == chosen.deploy.kubernetes.namespace
    agent = found["DaemonSet verl-ingest-agent"]["spec"]["template"]
    assert agent["metadata"]["labels"]["app.kubernetes.io/part-of"] == "verl-ingest"  # the network policy's
    config = found["ConfigMap verl-ingest-agent"]["data"]
    assert config["fluent-bit.yaml"] == files["agent/fluent-bit.yaml"] and "normalize_console.lua" in config
    assert len(json.dumps(found["ConfigMap verl-ingest-agent"])) < 1_000_000  # Kubernetes takes 1 MiB


def test_logs_on_a_volume_as_the_documentation_says(kustomize, tmp_path, monkeypatch):
    render.write(tmp_path / "build/kubernetes", kubernetes_files.render(of({}, tmp_path, monkeypatch)))
    page = (render.root() / "docs/deploy/kubernetes.md").read_text()
    (text,) = re.findall(r"```yaml\n# shared/kustomization.yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/kustomization.yaml").write_text(text)
    agent = built(kustomize, tmp_path / "shared")["DaemonSet verl-ingest-agent"]
    is_valid(agent, VERSIONS[-1:])
    volumes = {volume.pop("name"): volume for volume in agent["spec"]["template"]["spec"]["volumes"]}
    assert volumes["logs-0"] == {"persistentVolumeClaim": {"claimName": "runs", "readOnly": True}}


RAY = """
apiVersion: ray.io/v1
kind: {kind}
metadata: {{name: grpo-7b}}
spec: {cluster}
"""
GROUP = {
    "template": {
        "spec": {
            "initContainers": [],
            "containers": [{"name": "ray", "image": "rayproject/ray:2.46.0", "volumeMounts": []}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }
    }
}


@pytest.mark.parametrize("kind", ["RayCluster", "RayJob"])
def test_the_component_puts_an_agent_beside_ray(kustomize, tmp_path, monkeypatch, kind):
    render.write(tmp_path / "build", kubernetes_files.render(of(FLEET, tmp_path, monkeypatch)))
    cluster = {"headGroupSpec": GROUP, "workerGroupSpecs": [GROUP | {"groupName": "gpus"}]}
    spec = {"rayClusterSpec": cluster} if kind == "RayJob" else cluster
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/ray.yaml").write_text(RAY.format(kind=kind, cluster=json.dumps(spec)))
    lines = "resources: [ray.yaml]\ncomponents: [../build/kuberay]\nnamespace: ml\n"
    (tmp_path / "mine/kustomization.yaml").write_text(lines)
    found = built(kustomize, tmp_path / "mine")
    spec = found[f"{kind} grpo-7b"]["spec"]
    spec = spec.get("rayClusterSpec", spec)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        is_valid({"apiVersion": "v1", "kind": "Pod", "spec": pod}, VERSIONS[-1:])
        (agent,) = pod["initContainers"]
        assert agent["restartPolicy"] == "Always" and agent["securityContext"]["readOnlyRootFilesystem"]
        assert {"name": "ray-logs", "mountPath": "/tmp/ray"} in pod["containers"][0]["volumeMounts"]
        assert {mount["name"] for mount in agent["volumeMounts"]} <= {volume["name"] for volume in pod["volumes"]}
    assert found["ConfigMap verl-ingest-agent"]["metadata"]["namespace"] == "ml"


# ---- the agent itself


def probed(files: Mapping[str, str]) -> list[str]:
    """Return the paths on the metrics port that Kubernetes and Prometheus ask."""
    template = manifests(files)["DaemonSet verl-ingest-agent"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")]
    return [*probes, template["metadata"]["annotations"]["prometheus.io/path"]]


@pytest.mark.parametrize("folder", ["agent", "kuberay/agent"])
def test_fluent_bit_takes_the_rendered_configuration(fluent_bit, tmp_path, monkeypatch, folder):
    """Start it as the pod does; only folders and ports are the test's own. The image's 5.1.4 is not to be had here."""
    monkeypatch.setenv("VERL_INGEST_RUN", "grpo-7b")
    monkeypatch.setenv("VERL_INGEST_NODE", "pod-1")
    logs, port = tmp_path / "ray", trial.free_port()
    values = {
        "agent": {"state": str(tmp_path / "state"), "metrics_port": port, "forward_port": trial.free_port()},
        "paths": {"rank": [], "console": [], "rollout": [], "file_logger": [], "ray": [f"{logs}/logs/worker-*.out"]},
        "deploy": {"kubernetes": {"image": "fluent/fluent-bit:5.1.1"}},
        "elasticsearch_url": "http://127.0.0.1:9",
    }
    files = kubernetes_files.render(of(values, tmp_path, monkeypatch))
    place = tmp_path / "etc"
    render.write(place, {Path(name).name: text for name, text in files.items() if Path(name).parent == Path(folder)})
    dry = subprocess.run(
        [fluent_bit, "--dry-run", "-c", str(place / "fluent-bit.yaml")], capture_output=True, text=True
    )
    assert dry.returncode == 0, dry.stderr
    config = place / "fluent-bit.yaml"
    outputs = f"  outputs:\n    - {{name: file, match: '*', path: {tmp_path}, file: documents}}\n"
    config.write_text(config.read_text().partition("  outputs:\n")[0] + outputs)
    (logs / "logs").mkdir(parents=True)
    (logs / "logs/worker-1-01000000-7.out").write_text("INFO:2026-10-19 21:21:22,143:CUDA is up\n")
    log = (tmp_path / "log").open("w")
    agent = subprocess.Popen([fluent_bit, "-c", str(config)], stdout=log, stderr=subprocess.STDOUT, cwd="/")
    try:
        documents = tmp_path / "documents"
        wait_for(lambda: documents.exists() and documents.read_text(), timeout=fluentbit.START_S, what="document")
        assert '"run_id":"grpo-7b"' in documents.read_text()
        for path in probed(files):  # on all addresses, as the node asks from outside the pod
            with urllib.request.urlopen(f"http://127.0.0.2:{port}{path}", timeout=5) as answer:
                assert answer.status == 200, path
    finally:
        agent.terminate()
        agent.wait(fluentbit.STOP_S)
        log.close()
    assert "[error]" not in (tmp_path / "log").read_text()
