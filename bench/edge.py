"""CPU that the agent takes for the normaliser, against Fluent Bit's own JSON parser on the same lines."""

import resource
import statistics
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_ingest import render
from verl_ingest.edge import folder
from verl_ingest.settings import Paths, Settings

ROUNDS = 3
TIMEOUT_S = 300
JSON_PARSER = {"name": "json", "format": "json"}


def measure(binary: str, run: Path, place: Path, *, pattern: str) -> dict[str, float]:
    """Return CPU seconds a million lines of both, and the parser's over the normaliser's; medians of ROUNDS rounds.

    `run` is a run's folder, `pattern` matches its logs; both configurations read to the end and send nowhere.
    """
    lines = sum(log.read_bytes().count(b"\n") for log in run.glob(pattern))
    configurations = {"kit": _kit(run, place, pattern), "parser": _parser(run, place, pattern)}
    seconds: dict[str, list[float]] = {name: [] for name in configurations}
    for _ in range(ROUNDS):
        for name, configuration in configurations.items():
            seconds[name].append(_cpu_seconds(binary, configuration, place))
    medians = {name: statistics.median(values) * 1e6 / lines for name, values in seconds.items()}
    return {"lines": lines, **medians, "ratio": medians["parser"] / medians["kit"]}


def _kit(run: Path, place: Path, pattern: str) -> Mapping[str, Any]:
    paths = Paths(rank=(f"{run.parent}/{{run}}/{pattern}",), file_logger=(), console=(), rollout=(), ray=())
    settings = Settings.model_construct().model_copy(update={"paths": paths})
    render.write(place, folder.files(settings))
    config = yaml.safe_load((place / "fluent-bit.yaml").read_text())
    return _nowhere(config["pipeline"]["inputs"][0], {"filters": config["pipeline"]["filters"]}, [])


def _parser(run: Path, place: Path, pattern: str) -> Mapping[str, Any]:
    kit = _kit(run, place, pattern)["pipeline"]["inputs"][0]
    return _nowhere(kit | {"parser": JSON_PARSER["name"]}, {}, [JSON_PARSER])


def _nowhere(tail: Mapping[str, Any], more: Mapping[str, Any], parsers: list[Any]) -> Mapping[str, Any]:
    """Return a configuration that reads to the end, in memory, without offsets, and sends nowhere."""
    tail = {key: value for key, value in tail.items() if key not in ("db", "storage.type")}
    return {
        "service": {"flush": 1, "grace": 5, "log_level": "error"},
        "parsers": parsers,
        "pipeline": {
            "inputs": [tail | {"exit_on_eof": True}],
            **more,
            "outputs": [{"name": "null", "match": "*"}],
        },
    }


def _cpu_seconds(binary: str, configuration: Mapping[str, Any], place: Path) -> float:
    (place / "bench.yaml").write_text(yaml.safe_dump(configuration))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([binary, "-c", "bench.yaml"], cwd=place, check=True, capture_output=True, timeout=TIMEOUT_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
