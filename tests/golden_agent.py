"""What the real Fluent Bit makes of the golden files, committed beside them so that it is compared everywhere.

`python -m tests.golden` writes it anew where there is a Fluent Bit; test_agent.py holds it against a fresh run.
"""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests import fluentbit, golden
from verl_ingest.edge import trial

BY_AGENT = "-agent.json"


def agent_path(log: Path) -> Path:
    return golden.FOLDER / log.parent / (log.name + BY_AGENT)


def run(binary: str) -> dict[Path, str]:
    """Return the text that belongs beside each golden file, from one run of Fluent Bit over all of them."""
    with tempfile.TemporaryDirectory() as folder:
        runs, place = Path(folder, "runs"), Path(folder, "agent")
        shutil.copytree(golden.FOLDER, runs, ignore=shutil.ignore_patterns("*.json"))
        place.mkdir()
        settings = fluentbit.settings_for(runs, place, timezone=golden.SETTINGS.timezone)
        done = trial.run(binary, settings, place)
    assert done.complaints == ()
    documents = dict(done.documents)
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
