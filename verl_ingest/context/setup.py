"""What a run said of itself when it started: steps to go, size of its world, its tracker, its checkpoints' folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.query.store import Document

_PRINTED = re.compile(r"Total steps: ([1-9]\d*)\b")  # by the optimizer, of every run


@dataclass(frozen=True)
class Setup:
    """What is known; the newest launch counts, None is not known."""

    total_steps: int | None = None
    world_size: int | None = None
    tracker: str | None = None
    checkpoints: str | None = None


def read(documents: Sequence[Document]) -> Setup:
    """Return what the lines of a run that say how it was set up (in order of time) tell."""
    total = world = tracker = checkpoints = None
    for document in documents:
        extra = document.get("extra", {})
        printed = _PRINTED.match(document.get("message", ""))
        if document.get("event") == "config":
            world = _count(extra.get("world_size")) or world
            total = _count(_config(extra).get("trainer.total_training_steps")) or total
            checkpoints = _config(extra).get("trainer.default_local_dir") or checkpoints
        elif document.get("event") == "tracker":
            tracker = extra.get("url", tracker)
        elif printed:
            total = int(printed[1])
    return Setup(total, world, tracker, checkpoints)


def _config(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    config = extra.get("config")
    return config if isinstance(config, dict) else {}


def _count(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) and value >= 1 else None
