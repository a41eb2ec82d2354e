"""No secret is in what the kit renders or in what is committed."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.basic_auth import BasicAuthDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.slack import SlackDetector

from verl_ingest import render
from verl_ingest.cluster import targets
from verl_ingest.edge import folder
from verl_ingest.settings import Settings

ROOT = Path(__file__).parents[1]
# A setting or file that holds a secret -> the secret.
SECRETS = {
    "elasticsearch_password": "marker-1f0c",
    "elasticsearch_api_key": "marker-2a7d",
    "service.password": "marker-3b9e",
    "grafana.token": "marker-4c5f",
    "grafana.elasticsearch_api_key": "marker-5d21",
    "agent.secret_file": "marker-6e83",
    "deploy.secret_file": "marker-7f46",
}
LOGINS = {
    "password": {"elasticsearch_username": "admin", "elasticsearch_password": SECRETS["elasticsearch_password"]},
    "api_key": {"elasticsearch_api_key": SECRETS["elasticsearch_api_key"]},
}
# Of tokens and keys that have a form of their own; what looks random or is called a password is so in every test.
DETECTORS = (
    AWSKeyDetector(),
    BasicAuthDetector(),
    GitHubTokenDetector(),
    GitLabTokenDetector(),
    JwtTokenDetector(),
    NpmDetector(),
    OpenAIDetector(),
    PrivateKeyDetector(),
    PypiTokenDetector(),
    SlackDetector(),
)
# A URL with a password in it, which the settings must refuse.
MEANT = {"tests/settings/bad_url_with_password.yml"}


@pytest.fixture(params=LOGINS)
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings with all secrets that they can hold at once; some are read from files, some from the environment."""
    files = {}
    for name in ("agent.secret_file", "deploy.secret_file", "elasticsearch_ca_certs"):
        files[name] = tmp_path / name
        files[name].write_text(SECRETS.get(name, "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
    (tmp_path / "inventory").write_text("node-1\n")
    monkeypatch.setenv("VERL_INGEST_SERVICE__PASSWORD", SECRETS["service.password"])
    monkeypatch.setenv("VERL_INGEST_GRAFANA__TOKEN", SECRETS["grafana.token"])
    return Settings(
        **LOGINS[request.param],
        elasticsearch_url="https://es.example.org:9200",
        elasticsearch_ca_certs=files["elasticsearch_ca_certs"],
        agent={"username": "agents", "secret_file": str(files["agent.secret_file"])},
        deploy={"secret_file": files["deploy.secret_file"], "hosts": {"inventory": tmp_path / "inventory"}},
        service_url="https://kit.example.org",
        service={"username": "night"},
        kibana_url="https://kibana.example.org",
        grafana_url="https://grafana.example.org",
        grafana={"elasticsearch_api_key": SECRETS["grafana.elasticsearch_api_key"]},
    )


def leaks(files: Mapping[str, str]) -> list[str]:
    """Return which secret stands in which file."""
    return [f"{name} in {path}" for path, text in files.items() for name, secret in SECRETS.items() if secret in text]


def test_a_leak_would_be_seen():
    assert leaks({"a": "b marker-4c5f\n"}) == ["grafana.token in a"]


def test_no_secret_is_in_the_agents_folder(settings: Settings):
    assert leaks(folder.files(settings)) == []


def test_no_secret_is_in_the_dashboards(settings: Settings):
    assert leaks(render.dashboards(settings)) == []


def test_no_secret_is_in_what_is_committed_as_rendered(settings: Settings):
    """The fixture has set the environment, which these files must not depend on."""
    assert leaks(render.files()) == []


@pytest.mark.parametrize("kind", targets.KINDS)
def test_no_secret_is_in_what_is_rolled_out(settings: Settings, kind: str):
    target = targets.KINDS[kind](settings)
    assert target.files()
    assert leaks(target.files()) == []


def test_no_key_or_token_is_committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("needs a checkout with git, which knows what is committed")
    found = set()
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        text = path.read_text(errors="replace") if path.is_file() else ""
        if any(any(detector.analyze_string(text)) for detector in DETECTORS):
            found.add(name)
    assert found == MEANT
