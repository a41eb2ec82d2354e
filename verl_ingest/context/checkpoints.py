"""Checkpoints of a run as its lines tell of them, and how to resume from one."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from verl_ingest.query.store import Document, Lines, RunReader

FOLDER = "global_step_"
# verl 0.9 and later say the first, earlier versions the second; the trainer's own events are told by their names.
SAYS = ("Saving checkpoint to", "local_global_step_folder")
FARTHEST = 1_000  # steps back
_PATH = re.compile(rf"\S*\b{FOLDER}(\d+)\b")
_SAVED = re.compile(r"checkpoint", re.IGNORECASE)
PATH_KEYS = ("path", "folder", "checkpoint", "checkpoint_path")


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of a step; `path` where the logs tell it."""

    step: int
    path: str | None
    time: str

    @property
    def overrides(self) -> str | None:
        """The overrides that resume from it, to copy; None where its path is not known."""
        if self.path is None:
            return None
        return f"trainer.resume_mode=resume_path trainer.resume_from_path={shlex.quote(self.path)}"

    def entry(self) -> dict[str, Any]:
        """Return the checkpoint as `why --json` has it."""
        return {"step": self.step, "path": self.path, "time": self.time}


def last_before(run: RunReader, step: int, folder: str | None) -> Checkpoint | None:
    """Return the last complete checkpoint of a step before `step`, at most a thousand steps back.

    A step is logged after its checkpoint was written, so that of a step before another one is complete. `folder` is
    where the configuration puts checkpoints.
    """
    steps = (max(step - FARTHEST, 0), step - 1)
    if step <= 0:
        return None
    found = [checkpoint for text in SAYS for checkpoint in _read(run.lines(Lines(steps=steps, text=text)), folder)]
    return max(
        (checkpoint for checkpoint in found if checkpoint.step < step),
        key=lambda checkpoint: (checkpoint.step, checkpoint.path is not None),
        default=None,
    )


def _read(documents: Iterable[Document], folder: str | None) -> Iterable[Checkpoint]:
    for document in documents:
        path = _PATH.search(document.get("message", "")) if "event" not in document else None
        if path is not None and any(text in document["message"] for text in SAYS):
            yield Checkpoint(int(path[1]), path[0], document["@timestamp"])
        elif _SAVED.search(document.get("event", "")) and "step" in document:
            extra = document.get("extra", {})
            named = next((extra[key] for key in PATH_KEYS if isinstance(extra.get(key), str)), None)
            usual = f"{folder.rstrip('/')}/{FOLDER}{document['step']}" if folder else None
            yield Checkpoint(document["step"], named or usual, document["@timestamp"])
