"""Documents made by hand, in the shape that the normaliser gives them."""

import base64
import itertools
from typing import Any

from verl_ingest.index import mappings
from verl_ingest.query.times import iso

START = 1_780_000_000_000  # 2026-05-28T20:26:40Z, in milliseconds
Document = dict[str, Any]
_numbers = itertools.count()


def index_of(document: Document) -> str:
    prefix = mappings.SAMPLES_PREFIX if document["kind"] == "sample" else mappings.RECORDS_PREFIX
    return prefix + document["@timestamp"][:10].replace("-", ".")


def record(run: str, at_s: float, **fields: Any) -> Document:
    """Make a document of kind metric; `at_s` is in seconds since START, `host` and `pid` stand for their fields."""
    number = next(_numbers)
    document = {
        "@timestamp": iso(START + at_s * 1_000),
        "time_source": "record",
        "run_id": run,
        "kind": "metric",
        "event_id": base64.urlsafe_b64encode(b"tested" + number.to_bytes(5, "big") + b"\0" * 4).decode(),
    }
    names = {"host": "host.name", "pid": "process.pid", "level": "log.level"}
    document |= {names.get(name, name): value for name, value in fields.items() if value is not None}
    if "step" in document:
        document |= {"step_key": f"{run}|{document['step']}", "step_source": "record"}
    return document


def line(run: str, at_s: float, message: str, **fields: Any) -> Document:
    """Make a document of kind log."""
    return record(run, at_s, kind="log", message=message, **{"log.file.path": "console.log", **fields})


def sample(run: str, at_s: float, step: int, score: float | None, **fields: Any) -> Document:
    """Make a document of kind sample; fields go without their prefix."""
    own = {f"sample.{name}": value for name, value in {"split": "train", "score": score, **fields}.items()}
    return record(run, at_s, kind="sample", stage="rollout", step=step, **own)


def metric_of(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one metric of a step's context."""
    return next(metric for metric in body["metrics"] if metric["name"] == name)


def run_of(
    name: str, steps: int, *, ranks: int = 4, every: float = 10, first: int = 1, seed: float = 0.0
) -> list[Document]:
    """A healthy run: two stages, values that vary a little and differ a little between ranks."""
    return [
        record(
            name,
            every * number + 4 * place,
            step=number,
            rank=rank,
            stage=stage,
            host=f"node-{rank // 2}",
            pid=100 + rank,
            metrics={metric: value + 0.01 * ((7 * number + 3 * rank + seed) % 5)},
        )
        for number in range(first, first + steps)
        for rank in range(ranks)
        for place, (stage, metric, value) in enumerate(
            [("rollout", "rollout/latency_ms", 3_000.0), ("reward", "kl_divergence", 0.1)]
        )
    ]


def replaced(documents: list[Document], where: dict, **changes) -> list[Document]:
    return [
        document | changes if all(document.get(name) == value for name, value in where.items()) else document
        for document in documents
    ]
