"""The record that is tried on a node: where it is written, and which document it must become."""

import re
from dataclasses import dataclass
from pathlib import Path

import orjson

from verl_ingest.errors import SettingsError
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.settings import Settings

RUN = "verl-ingest-canary"


@dataclass(frozen=True)
class Mark:
    """A line for a log file of its own, and the document that it must become."""

    path: str
    line: str
    index: str
    document_id: str


def mark(settings: Settings, *, node: str, nanoseconds: int) -> Mark:
    """Return the mark of a node, of that time since 1970.

    It lies where the first path of `paths` with a {run} in it has the logs of a run, in a file named after the node.
    Raises SettingsError where no path names a run.
    """
    if not settings.run_paths:
        raise SettingsError("No setting of `paths` has a {run} in it, so no record can be tried; set paths.rank.")
    path = _example(settings.run_paths[0], f"{re.sub(r'[^A-Za-z0-9.-]', '-', node)}-{nanoseconds}")
    line = orjson.dumps({"event": "canary", "timestamp_ns": nanoseconds, "hostname": node}).decode()
    normaliser = Normaliser(settings.model_copy(update={"node": node}))
    located = normaliser.locate(Path(path))
    if located is None:
        raise SettingsError(f"The file {path}, made from a path of `paths`, does not match it; mend that path.")
    file = normaliser.open(Path(path), run_id=located[0], relative=located[1])
    block = normaliser.block(file, line.encode() + b"\n", offset=0, fallback=Fallback(nanoseconds, "read"))
    action = orjson.loads(block.dated.split(b"\n", 1)[0])["index"]
    return Mark(path, line, action["_index"], action["_id"])


def _example(pattern: str, name: str) -> str:
    """Return a path that a pattern matches: the run's name for {run}, `name` for the first star, digits for classes."""
    folder, _, file = pattern.replace("{run}", RUN).rpartition("/")
    folder = folder.replace("*", "canary")
    file = file.replace("*", f"canary-{name}-", 1).replace("*", "")
    return re.sub(r"\[([^]!^])[^]]*\]|\?", lambda match: match[1] or "0", f"{folder}/{file}")
