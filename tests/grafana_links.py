"""Where the links of every panel lead. `make grafana` asks Grafana's own code, and writes what it answers.

The code is that of npm, 380 MB that stay in the user's cache. What it answers is kept here, so that the tests need
neither npm nor Node: they open each link, and fail where a panel is no longer the one that the code was asked about.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
from elasticsearch import Elasticsearch

from tests.demo_store import DEMO, load
from tests.grafana_queries import BUCKET_MS, DEFAULTS, ask, read
from verl_ingest import grafana
from verl_ingest.demo import logs
from verl_ingest.index import apply
from verl_ingest.links import grafana as links
from verl_ingest.local import elasticsearch as local_elasticsearch
from verl_ingest.settings import Settings

GOLDEN = Path(__file__).parent / "data" / "grafana-links.json"
SCRIPT = Path(__file__).parent / "grafana" / "panels.cjs"
# Grafana's versions, each with the scenes that its dashboards are made of.
VERSIONS = {"11.6.16": "6.10.4", "12.4.10": "6.57.2"}
BESIDES = ("react@18.3.1", "react-dom@18.3.1", "react-router-dom@6.30.1", "jsdom@26.1.0")
RUN = f"console-of-{DEMO}"
BEGIN = logs.START * 1_000
HOSTILE = "r'17 #a!b/中&step=9"
WHOLE = (BEGIN - 60_000, BEGIN + 4_000_000)
ADDRESS = f"http://grafana.example/d/{links.DASHBOARD}?orgId=1&from={WHOLE[0]}&to={WHOLE[1]}&var-run_id={RUN}"
_LINE = {"@timestamp": "2026-03-01T16:26:13.000Z", "step": 128, "rank": 3, "stage": "actor", "message": "?"}
# Records that the demo's run does not have.
DOCUMENTS = {
    "Anomalies": {**_LINE, "anomaly": {"rule": "kl_high", "metric": "kl_divergence", "value": 0.08}},
    "Lines that were not understood": {**_LINE, "kind": "unparsed"},
}
STAGES = [
    {"name": "step", "type": "number", "values": [128]},
    {"name": "Average metrics.timing_s/gen", "type": "number", "values": [3.2]},
]


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every panel under the name of its dashboard and its own."""
    for dashboard in grafana.dashboards():
        for panel in dashboard.body["panels"]:
            for inner in panel["panels"] if panel["type"] == "row" else [panel]:
                yield f"{dashboard.uid}: {inner['title']}", inner


def made_of(panel: dict[str, Any]) -> str:
    """Return a hash of what the links of a panel depend on."""
    parts = [panel[name] for name in ("type", "targets", "transformations", "fieldConfig")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def main() -> None:
    """Ask each version about each panel, with the demo's run, and write what it answers."""
    if not shutil.which("npm"):
        sys.exit("There is no npm on PATH; install Node.js 20 or later.")
    with local_elasticsearch.running() as server, Elasticsearch(server.url) as client:
        _load_demo(client)
        asked = [(name, panel, _frames(client, panel)) for name, panel in panels()]
    question = {
        "variables": {**DEFAULTS, "run_id": RUN, "service": grafana.SERVICE},
        "url": ADDRESS,
        "interval": BUCKET_MS,
        "panels": [{"panel": panel, "frames": frames} for _, panel, frames in asked],
    }
    golden: dict[str, Any] = {}
    for version, scenes in VERSIONS.items():
        folder = _installed(version, scenes)
        answers = _answers(folder, question)
        found = {
            name: {"made_of": made_of(panel), "columns": [_short(column) for column in columns]}
            for (name, panel, _), columns in zip(asked, answers, strict=True)
        }
        golden[version] = {"panels": found, "hostile": _hostile(folder, question)}
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{GOLDEN}: {len(asked)} panels, {' and '.join(VERSIONS)}")


def _frames(client: Elasticsearch, panel: dict[str, Any]) -> list[dict[str, Any]]:
    title, (target, *_) = panel["title"], panel["targets"]
    if panel["datasource"]["type"] == "prometheus":
        times = {"name": "Time", "type": "time", "values": [BEGIN + 600_000]}
        value = {
            "name": "Value",
            "type": "number",
            "values": [1.0],
            "labels": {"instance": "node-1:2020", "name": "rank"},
        }
        return [{"refId": "A", "name": "node-1:2020 rank", "fields": [times, value]}]
    if title in DOCUMENTS:
        return read(target, {"hits": {"hits": [{"_source": DOCUMENTS[title]}]}})
    if title == "Stage durations":
        return [{"refId": "A", "name": "", "fields": STAGES}]
    return ask(client, panel, WHOLE, run_id=RUN)


def _hostile(folder: Path, question: dict[str, Any]) -> list[str]:
    """Return the links of the first panel for a run with a name that needs quoting."""
    variables = question["variables"] | {"run_id": HOSTILE}
    (columns,) = _answers(folder, question | {"variables": variables, "panels": question["panels"][:1]})
    return [link["url"] for column in columns for link in column["links"]]


def _short(column: dict[str, Any]) -> dict[str, Any]:
    """Return a column with only the number of its values."""
    given = [value for value in column["values"] if value is not None]
    return {"column": column["column"], "values": len(given), "links": column["links"]}


def _answers(folder: Path, question: dict[str, Any]) -> list[Any]:
    command = ["node", str(SCRIPT), str(folder)]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def _installed(version: str, scenes: str) -> Path:
    """Return a folder with that version of Grafana's code; npm fetches it once."""
    folder = Path(platformdirs.user_cache_dir("verl-ingest")) / f"grafana-{version}"
    if not (folder / "node_modules").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as half:
            packages = [f"@grafana/data@{version}", f"@grafana/scenes@{scenes}", *BESIDES]
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--legacy-peer-deps"]
            subprocess.run(["npm", "install", "--prefix", half, *options, *packages], check=True, timeout=900)
            shutil.rmtree(folder, ignore_errors=True)
            Path(half).rename(folder)
            Path(half).mkdir()  # for the context manager to remove
    return folder


def _load_demo(client: Elasticsearch) -> None:
    apply.write(client, apply.compare(client, apply.wanted(Settings())))
    with tempfile.TemporaryDirectory() as folder:
        logs.write(Path(folder))
        load(client, RUN, Path(folder))


if __name__ == "__main__":
    main()
