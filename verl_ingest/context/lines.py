"""Log lines: what a line says, equal lines folded with counts, errors with the first one first."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_ingest.context import processes
from verl_ingest.context.hosts import true_seconds
from verl_ingest.context.words import first_line
from verl_ingest.query import bodies
from verl_ingest.query.store import Document
from verl_ingest.query.times import iso, seconds

# Levels as loggers write them, in lower case, from the mildest.
SEVERITY = {"debug": 0, "info": 1, "warn": 2, "warning": 2, **dict.fromkeys(bodies.ERROR_LEVELS, 3)}


@dataclass
class Fold:
    """Equal lines: the first one's time, how often, on which ranks."""

    document: Document
    first: float
    last: float
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)

    def entry(self) -> dict[str, Any]:
        """Return the line as `step --json` has it."""
        return {
            "time": self.document["@timestamp"],
            "last": iso(self.last * 1_000),
            "level": self.document.get("log.level"),
            "ranks": sorted(self.ranks),
            "pids": sorted(self.pids),
            "host": self.document.get("host.name"),
            "source": source(self.document),
            "message": text(self.document),
            "count": self.count,
        }


def fold(documents: Iterable[Document]) -> list[Fold]:
    """Fold lines with the same level and text, wherever they stand; the order is that of the first ones."""
    folds: dict[tuple[str | None, str], Fold] = {}
    for document in documents:
        time = seconds(document)
        key = document.get("log.level"), document.get("error.fingerprint") or text(document)
        line = folds.setdefault(key, Fold(document, time, time))
        line.last = max(line.last, time)
        line.count += document.get("log.repeated", 1)
        if "rank" in document:
            line.ranks.add(document["rank"])
        pid = processes.origin(document)
        if pid is not None:
            line.pids.add(pid)
    return list(folds.values())


def errors(documents: Iterable[Document], skew: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the errors, equal ones folded, the first one by true time first: hosts' clocks are set right by `skew`."""
    failed = [document for document in documents if is_error(document)]
    failed.sort(key=lambda document: true_seconds(document, skew))
    return [
        {
            **line.entry(),
            "type": line.document.get("error.type"),
            "fingerprint": line.document.get("error.fingerprint"),
            "stack_trace": line.document.get("error.stack_trace"),
        }
        for line in fold(failed)
    ]


def is_error(document: Document) -> bool:
    """Tell whether the document is a traceback or a line of level error or above.

    Hydra's line that says with which overrides a job failed is none: the error itself comes after it.
    """
    if "overrides" in document.get("extra", {}):
        return False
    return "error.type" in document or document.get("log.level") in bodies.ERROR_LEVELS


def is_line(document: Document) -> bool:
    """Tell whether the document is a line of text and not a metric."""
    return document["kind"] in ("log", "event", "unparsed")


def text(document: Document) -> str:
    """Return what a line says; an event says its name and single values, in one line."""
    if "error.type" in document:
        return f"{document['error.type']}: {document.get('error.message', '')}"
    if "event" in document:
        details = {**document.get("metrics", {}), **document.get("extra", {})}
        single = [f"{name}={value}" for name, value in details.items() if not isinstance(value, dict | list)]
        return first_line(" ".join([f"event {document['event']}", *single]))
    return document.get("message", "")


def source(document: Document) -> str | None:
    """Return the source file and line that wrote a log line, else its logger, else the log file it stands in."""
    name = document.get("log.origin.file.name")
    if name is not None:
        return f"{name}:{document['log.origin.file.line']}" if "log.origin.file.line" in document else name
    return document.get("log.logger") or document.get("log.file.path")


def levels_from(level: str) -> list[str] | None:
    """Return the levels that are at least `level`, None for a level that nobody knows."""
    least = SEVERITY.get(level.lower())
    return None if least is None else [name for name, severity in SEVERITY.items() if severity >= least]
