"""One step's metric records -> its summary."""

import statistics
from collections.abc import Iterable, Sequence

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import pooling
from verl_ingest.context.dates import is_dated
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import Document, Key, MadeOf, StagePresence
from verl_ingest.query.summaries import Spread, Summary
from verl_ingest.query.times import milliseconds


def summarise(documents: Sequence[Document], *, attempt: int, made_of: MadeOf, catalogue: Catalogue) -> Summary:
    """Return the summary of a step; the documents are the metric records that one attempt has of it."""
    step = documents[0]["step"]
    return Summary(
        run_id=documents[0]["run_id"],
        attempt=attempt,
        step=step,
        made_of=made_of,
        metrics={key: _spread(values, key, catalogue) for key, values in _values(documents).items()},
        stages={stage: _presence(part, step) for stage, part in _by_stage(documents).items()},
    )


def _values(documents: Iterable[Document]) -> dict[Key, list[Value]]:
    """Return every value of each metric, as an aggregation sees them."""
    found: dict[Key, list[Value]] = {}
    for document in documents:
        rank = document.get("rank")
        for name, number in document.get("metrics", {}).items():
            value = Value(number, rank, document.get("weight"), document.get("host.name"))
            found.setdefault(Key(name, document.get("stage"), rank is not None), []).append(value)
    return found


def _spread(values: Sequence[Value], key: Key, catalogue: Catalogue) -> Spread:
    meaning = catalogue.find(key.name)
    pooled = pooling.pool(values, meaning.direction if meaning else "either")
    return Spread(pooled.mean, pooled.std, pooled.low, pooled.high, pooled.n, pooled.worst_rank)


def _by_stage(documents: Iterable[Document]) -> dict[str | None, list[Document]]:
    found: dict[str | None, list[Document]] = {}
    for document in documents:
        found.setdefault(document.get("stage"), []).append(document)
    return found


def _presence(documents: Sequence[Document], step: int) -> StagePresence:
    times: dict[str, list[int]] = {}
    for document in documents:
        if "host.name" in document:
            times.setdefault(document["host.name"], []).append(milliseconds(document))
    dated = [milliseconds(document) for document in documents if is_dated(document)]
    return StagePresence(
        ranks=frozenset(document["rank"] for document in documents if "rank" in document),
        records={step: len(documents)},
        ends={step: max(dated)} if dated else {},
        host_times={step: {host: statistics.fmean(of_host) for host, of_host in times.items()}},
    )
