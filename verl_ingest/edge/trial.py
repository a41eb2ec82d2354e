"""A short real run of Fluent Bit: the rendered configuration on some logs, into a file instead of a server."""

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson
import yaml

from verl_ingest.edge import folder
from verl_ingest.errors import KitError
from verl_ingest.settings import Settings

TIMEOUT_S = 60
OUTPUT = "documents"
_RECORD = re.compile(rb"^\S+: \[(\d+)\.(\d{9}), (.*)\]$")


@dataclass(frozen=True)
class Trial:
    """What a run made of the logs: documents by id, and the complaints of its log."""

    documents: Mapping[str, dict[str, Any]]
    complaints: tuple[str, ...]


def find(environment: Mapping[str, str]) -> str | None:
    """Return the path of Fluent Bit: FLUENT_BIT_BIN, else the one on the PATH; None where there is none."""
    return environment.get("FLUENT_BIT_BIN") or shutil.which("fluent-bit")


def run(binary: str, settings: Settings, place: Path) -> Trial:
    """Run the configuration of these settings to the end of the logs that they name; `place` is an empty folder.

    Only the state, the ports and the outputs are other than rendered. Raises KitError where Fluent Bit does not end by
    itself, or fails.
    """
    for name, text in folder.files(settings).items():
        (place / name).write_text(text, encoding="utf-8")
    config_path = place / "fluent-bit.yaml"
    config = yaml.safe_load(config_path.read_text(encoding="utf-8"))
    config_path.write_text(yaml.safe_dump(_until_the_end(config, place)), encoding="utf-8")
    _invoke([binary, "--dry-run", "-c", config_path.name], place)
    log = _invoke([binary, "-c", config_path.name], place)
    complaints = [line for line in log.splitlines() if "[error]" in line or "used but not set" in line]
    output = place / OUTPUT
    lines = output.read_bytes().splitlines() if output.exists() else []
    return Trial(dict(_document(line) for line in lines), tuple(complaints))


def _until_the_end(config: dict[str, Any], place: Path) -> dict[str, Any]:
    config.pop("env", None)  # a secret is not needed, and may not be there yet
    config["service"] |= {"grace": 5, "http_port": free_port(), "storage.path": str(place / "storage")}
    inputs = config["pipeline"]["inputs"]
    config["pipeline"]["inputs"] = [
        each | {"exit_on_eof": True, "db": str(place / f"{each['alias']}.db")} for each in inputs if "db" in each
    ]
    config["pipeline"]["outputs"] = [{"name": "file", "match": "*", "path": str(place), "file": OUTPUT}]
    return config


def _invoke(command: list[str], place: Path) -> str:
    """Run a command and return its output. Raises KitError with the last line of complaint where it fails."""
    try:
        done = subprocess.run(
            command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KitError(f"{command[0]}: Fluent Bit can't be run on a sample: {error}.") from None
    if done.returncode != 0:
        complaint = [line for line in done.stdout.splitlines() if "error" in line.lower()] or [done.stdout.strip()]
        raise KitError(f"Fluent Bit refuses the configuration: {complaint[-1]}")
    return done.stdout


def _document(line: bytes) -> tuple[str, dict[str, Any]]:
    seconds, nanoseconds, record = _RECORD.match(line).groups()  # type: ignore[union-attr]
    document = orjson.loads(record)
    if document["time_source"] != "read":
        moment = datetime.fromtimestamp(int(seconds), timezone.utc)
        document["@timestamp"] = f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds.decode()}Z"
    return document["event_id"], document


def free_port() -> int:
    """Return a port of the loopback address that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
