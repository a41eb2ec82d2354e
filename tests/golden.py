"""Golden log files: tests/lines/<case>/... beside the documents that its lines must become.

Drop a log file into a folder of tests/lines and it is a test. The folder is the run folder and its name the run, so
names and sub-folders count as they do in a real run. `python -m tests.golden` (make golden) rewrites what is expected;
read the difference before you commit it. Tests never rewrite.
"""

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from verl_ingest.edge import trial
from verl_ingest.load.files import LogFile
from verl_ingest.load.reader import Lines, read
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.settings import Settings

FOLDER = Path(__file__).parent / "lines"
EXPECTED = "-expected.json"
NO_TIME = Fallback(1_772_380_800_000_000_000, "estimated")  # 2026-03-01T16:00:00Z
SETTINGS = Settings(timezone="Asia/Shanghai")


def logs() -> list[Path]:
    """Return every golden log file, relative to FOLDER."""
    files = (path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file())
    return sorted(path for path in files if not path.name.endswith(".json"))


def expected_path(log: Path) -> Path:
    return FOLDER / log.parent / (log.name + EXPECTED)


def normalise(log: Path) -> dict[str, Any]:
    """Return what the lines of a golden file become: documents in order, each with its index, and counts of drops."""
    path = FOLDER / log
    file = LogFile(path, log.parts[0], str(Path(*log.parts[1:])), path.stat().st_size, NO_TIME.nanoseconds)
    normaliser = Normaliser(SETTINGS)
    source = normaliser.open(path, run_id=file.run_id, relative=file.relative)
    documents, dropped = [], {}
    for part in read(file, final=False):
        if isinstance(part, Lines):
            block = normaliser.block(source, part.data, offset=part.offset, fallback=NO_TIME)
            documents += _pairs(block.dated + b"".join(undated.action() for undated in block.undated))
            dropped |= block.dropped
    # Ids order the lines of one file.
    return {"documents": sorted(documents, key=_offset), "dropped": dropped}


def _pairs(body: bytes) -> list[dict[str, Any]]:
    lines = [orjson.loads(line) for line in body.splitlines()]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return [
        {"_index": action["index"]["_index"], "event_id": action["index"]["_id"], **document}
        for action, document in pairs
    ]


def _offset(document: dict[str, Any]) -> bytes:
    return base64.urlsafe_b64decode(document["event_id"])[6:11]


def render(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> int:
    changed = _write({expected_path(log): render(normalise(log)) for log in logs()})
    binary = trial.find(os.environ)
    if binary:
        by_agent = golden_agent.run(binary)
        changed += _write({golden_agent.agent_path(log): text for log, text in by_agent.items()})
    else:
        print(f"what the agent makes of them is left as it is: {fluentbit.MISSING}")
    print(f"{len(logs())} golden files, {changed} files changed")
    return 0


def _write(texts: dict[Path, str]) -> int:
    """Write the files whose text is another; return how many."""
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
        print(f"wrote {path.relative_to(FOLDER.parent)}")
    return len(stale)


if __name__ == "__main__":
    from tests import fluentbit, golden_agent  # they use this module

    sys.exit(main())
