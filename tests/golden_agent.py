"""What the real Fluent Bit makes of the golden files, committed beside them so that it is compared everywhere.

`python -m tests.golden` writes it anew where there is a Fluent Bit; test_agent.py holds it against a fresh run.
"""

import json
import re
import shutil
import subprocess
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from tests import fluentbit, golden
from verl_ingest import render
from verl_ingest.edge import folder

BY_AGENT = "-agent.json"
TIMEOUT_S = 60
_RECORD = re.compile(rb"^\S+: \[(\d+)\.(\d{9}), (.*)\]$")


def agent_path(log: Path) -> Path:
    return golden.FOLDER / log.parent / (log.name + BY_AGENT)


def run(binary: str) -> dict[Path, str]:
    """Return the text that belongs beside each golden file, from one run of Fluent Bit over all of them."""
    with tempfile.TemporaryDirectory() as place:
        documents = _documents(binary, Path(place))
    found = {}
    for log in golden.logs():
        expected = json.loads(golden.expected_path(log).read_text(encoding="utf-8"))["documents"]
        ids = [document["event_id"] for document in expected]
        found[log] = golden.render([documents.pop(name) for name in ids if name in documents])
    if documents:
        raise AssertionError(f"Fluent Bit made documents that no golden file has: {list(documents.values())[:3]}")
    return found


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what a live agent can't know as a loader does: the time where the line has not all."""
    left_out = {"_index", "time_source"}
    if document["time_source"] in ("read", "estimated") or "year_assumed" in document.get("flags", []):
        left_out.add("@timestamp")
    return {name: value for name, value in document.items() if name not in left_out}


def _documents(binary: str, place: Path) -> dict[str, dict[str, Any]]:
    """Run the rendered configuration, but into a file and until the end of the logs; return the documents by id."""
    runs, out = place / "runs", place / "out.jsonl"
    shutil.copytree(golden.FOLDER, runs, ignore=shutil.ignore_patterns("*.json"))
    settings = fluentbit.settings_for(runs, place / "state", timezone=golden.SETTINGS.timezone)
    render.write(place, folder.files(settings))
    config = yaml.safe_load((place / "fluent-bit.yaml").read_text())
    inputs = config["pipeline"]["inputs"]
    config["pipeline"]["inputs"] = [each | {"exit_on_eof": True} for each in inputs if each["name"] == "tail"]
    config["pipeline"]["outputs"] = [{"name": "file", "match": "*", "path": str(place), "file": out.name}]
    config["service"]["grace"] = 5
    (place / "fluent-bit.yaml").write_text(yaml.safe_dump(config))
    (place / "state").mkdir()
    subprocess.run([binary, "-c", "fluent-bit.yaml"], cwd=place, check=True, capture_output=True, timeout=TIMEOUT_S)
    found = {}
    for line in out.read_bytes().splitlines():
        seconds, nanoseconds, record = _RECORD.match(line).groups()
        document = json.loads(record)
        if document["time_source"] != "read":
            moment = datetime.fromtimestamp(int(seconds), timezone.utc)
            document["@timestamp"] = f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds.decode()}Z"
        found[document["event_id"]] = document
    return found
