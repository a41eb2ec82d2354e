"""What Prometheus of the compose stack is given, with the real promtool, Prometheus, Fluent Bit and service."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests.serving import listening
from tests.stack import ROOT, defaults
from tests.waiting import wait_for
from verl_ingest.edge.trial import free_port
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Service

FOLDER = ROOT / "deploy/prometheus"
ALERTS = (FOLDER / "alerts.yml").read_text()

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="no promtool and prometheus on the PATH (Debian: apt-get install prometheus)",
)


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_the_configuration_is_sound() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))


def test_each_alert_is_silent_below_its_limit_and_fires_above() -> None:
    promtool("test", "rules", str(ROOT / "tests/data/alerts.yml"))
    tested = (ROOT / "tests/data/alerts.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    assert len(alerts) == 7
    for alert in alerts:
        assert f"alertname: {alert}, exp_alerts: []" in tested or tested.count(f"alertname: {alert}\n") == 1, alert


def test_a_wrong_limit_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "alerts.yml").write_text(ALERTS.replace("percent < 20", "percent < 30"))
    test = (ROOT / "tests/data/alerts.yml").read_text().replace("../../deploy/prometheus/", "")
    (tmp_path / "test.yml").write_text(test)
    with pytest.raises(AssertionError, match="VerlBufferFills"):
        promtool("test", "rules", str(tmp_path / "test.yml"))


def test_agent_and_service_are_scraped_and_have_what_the_alerts_ask_for(fluent_bit: str, tmp_path: Path) -> None:
    agent = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state")
    login = Service(username="verl", password="hush")  # type: ignore[arg-type]
    with (
        Elasticsearch("http://127.0.0.1:9") as away,
        listening(defaults(service=login), ElasticStore(away)) as service,
        fluentbit.running(fluent_bit, tmp_path, agent),
        prometheus(tmp_path, agent=agent.agent.metrics_port, service=service, password="hush") as ask,
    ):
        assert wait_for(lambda: up(ask), timeout=60, what="answers of both")
        names = set(re.findall(r"(?:fluentbit|verl_ingest)_\w+", " ".join(re.findall(r"expr: (.*)", ALERTS))))
        assert len(names) == 5
        missing = {name for name in names if not ask("series", **{"match[]": name})}
        assert missing == set()
        groups = ask("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
        assert sum(len(group["rules"]) for group in groups) == 7


def up(ask: Any) -> bool:
    found = ask("query", query="up")["result"]
    values = {(each["metric"]["job"], each["value"][1]) for each in found}
    return values == {("fluent-bit", "1"), ("verl-ingest", "1")}


class prometheus:
    """The real Prometheus on the stack's own configuration, with the addresses of this machine."""

    def __init__(self, folder: Path, *, agent: int, service: int, password: str) -> None:
        text = (FOLDER / "prometheus.yml").read_text()
        secret = folder / "service_password"
        secret.write_text(password)
        for mine, theirs in (
            (f"127.0.0.1:{agent}", "fluent-bit:2020"),
            (f"127.0.0.1:{service}", "service:9110"),
            (str(secret), "/run/secrets/service_password"),
            ("1s", "15s"),
        ):
            assert theirs in text
            text = text.replace(theirs, mine)
        (folder / "prometheus.yml").write_text(text)
        (folder / "alerts.yml").write_text(ALERTS)
        self._address = f"127.0.0.1:{free_port()}"
        self._log = (folder / "prometheus.log").open("wb")
        self._command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={self._address}",
        ]

    def __enter__(self) -> Any:
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            wait_for(self._is_ready, timeout=60, what=f"Prometheus ({self._log.name})")
        except BaseException:
            self.__exit__()
            raise
        return self._ask

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, Path(self._log.name).read_text()
        try:
            with urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=10) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]
