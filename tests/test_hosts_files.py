"""What is rolled out to hosts, as rendered: units that systemd understands, files that are copied, no secret."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from verl_ingest import render
from verl_ingest.cluster import hosts, hosts_files
from verl_ingest.errors import SettingsError
from verl_ingest.settings import Agent, Deploy, Hosts, Paths, Retention, Settings

EXPOSURE = "20"  # of 100, as systemd-analyze counts: below it a service is OK
SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: install systemd")


def settings_with(**values: Any) -> Settings:
    return Settings.model_construct(**{**dict(Settings.model_construct()), **values})


def rendered(**values: Any) -> dict[str, str]:
    return hosts_files.files(settings_with(**values))


def unit(**values: Any) -> list[str]:
    return rendered(**values)[hosts_files.UNIT].splitlines()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("hush-hush\n")
    return path


def test_playbooks_are_yaml_and_what_is_rendered_says_so() -> None:
    files = rendered(retention=Retention(days=30))
    for name in files:
        if name.endswith(".yml"):
            assert yaml.safe_load(files[name])
    strange = [name for name, text in files.items() if "emplates/" not in text and not name.endswith((".lua", ".py"))]
    assert strange == []


@SYSTEMD
def test_the_units_are_sound_and_the_agents_is_hardened(secret: Path, tmp_path: Path) -> None:
    agent = shutil.which("true")  # verify wants a program that is there
    deploy = Deploy(secret_file=secret, hosts=Hosts(fluent_bit=agent, user="daemon", group="daemon"))
    files = rendered(deploy=deploy, retention=Retention(days=30))
    units = {Path(name).name: text for name, text in files.items() if Path(name).suffix in (".service", ".timer")}
    assert sorted(units) == [
        "verl-ingest-retention.service",
        "verl-ingest-retention.timer",
        "verl-ingest-serve.service",
        "verl-ingest.service",
    ]
    render.write(tmp_path, units)
    done = subprocess.run(["systemd-analyze", "verify", *units], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE}", hosts_files.UNIT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_systemd_hands_over_the_secret_and_a_script_reads_it_from_its_file(secret: Path) -> None:
    deploy = Deploy(secret_file=secret)
    files = rendered(deploy=deploy, agent=Agent(username="agent"))
    assert "hush-hush" not in str(files)
    assert "LoadCredential=elasticsearch:/etc/verl-ingest/secret" in files[hosts_files.UNIT]
    assert "-c /etc/verl-ingest/fluent-bit-systemd.yaml" in files[hosts_files.UNIT]
    by_unit, by_script = (yaml.safe_load(files[f"agent/{name}.yaml"]) for name in ("fluent-bit-systemd", "fluent-bit"))
    assert by_unit.pop("env") == {"ELASTICSEARCH_SECRET": "file:///run/credentials/verl-ingest.service/elasticsearch"}
    assert by_script.pop("env") == {"ELASTICSEARCH_SECRET": "file:///etc/verl-ingest/secret"}
    assert by_unit == by_script
    assert yaml.safe_load(files["variables.yml"])["secret_source"] == str(secret)


def test_a_secret_that_is_there_is_not_copied() -> None:
    variables = yaml.safe_load(rendered(agent=Agent(secret_file="/etc/keys/agent"))["variables.yml"])
    assert (variables["secret_file"], variables["secret_source"]) == ("/etc/keys/agent", None)


def test_without_a_secret_there_is_one_configuration() -> None:
    assert "LoadCredential" not in str(unit())
    assert [name for name in rendered() if "systemd" in name] == []


def test_the_certificate_goes_along(tmp_path: Path) -> None:
    (tmp_path / "own.pem").write_text("a certificate")
    url = "https://es.example.org:9200"
    files = rendered(elasticsearch_ca_certs=tmp_path / "own.pem", elasticsearch_url=url)
    assert files["agent/ca.pem"] == "a certificate"
    assert "tls.ca_file: /etc/verl-ingest/ca.pem" in files["agent/fluent-bit.yaml"]


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no\.pem can't be read: No such file or directory\.$"):
        rendered(elasticsearch_ca_certs=tmp_path / "no.pem")


@pytest.mark.parametrize(("name", "said"), [("nowhere", "no such file"), (".", "it is a folder")])
def test_without_the_secret_nothing_is_rolled_out(name: str, said: str, tmp_path: Path) -> None:
    target = hosts.Hosts(settings_with(deploy=Deploy(secret_file=tmp_path / name)))
    target.files()  # the checks come first
    for begin in (target.plan, target.roll_out):
        with pytest.raises(SettingsError, match=re.escape(f"{(tmp_path / name).absolute()}: {said}; deploy.secret_")):
            list(begin(tmp_path))


@pytest.mark.parametrize(
    ("paths", "tmp", "home"),
    [
        ({"ray": ("/tmp/ray/session_latest/logs/worker-*.out",)}, "no", "yes"),
        ({"rank": ("/home/me/runs/{run}/*rank*.jsonl",)}, "yes", "read-only"),
        ({"rank": ("/data/tmp/{run}/*rank*.jsonl",)}, "yes", "yes"),
    ],
)
def test_the_unit_hides_no_folder_that_logs_lie_in(paths: dict[str, Any], tmp: str, home: str) -> None:
    lines = unit(paths=Paths(**paths))
    assert f"PrivateTmp={tmp}" in lines
    assert f"ProtectHome={home}" in lines


def test_each_host_has_a_name_of_its_own() -> None:
    assert "Environment=VERL_INGEST_NODE=%H" in unit(node="laptop")
    assert "laptop" not in rendered(node="laptop")["agent/settings.lua"]


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:2020/"),
        ("0.0.0.0", "http://127.0.0.1:2020/"),
        ("10.0.0.7", "http://10.0.0.7:2020/"),
        ("::", "http://[::1]:2020/"),
    ],
)
def test_an_agent_is_asked_where_it_listens(listen: str, url: str) -> None:
    variables = hosts_files.variables(settings_with(agent=Agent(metrics_listen=listen)))
    assert variables["metrics_url"] == f"{url}api/v2/metrics"


def test_the_timer_of_retention_is_rendered_where_days_are_set() -> None:
    assert [name for name in rendered() if "retention" in name] == []
    assert " retention\n" in rendered(retention=Retention(days=7))["kit/verl-ingest-retention.service"]
