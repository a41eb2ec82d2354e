"""One step's metric records -> its summary."""

import statistics
from collections.abc import Iterable, Sequence

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import pooling
from verl_ingest.context.dates import is_dated
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import Document, Key, MadeOf
from verl_ingest.query.summaries import Spread, StageSummary, Summary
from verl_ingest.query.times import milliseconds


def summarise(documents: Sequence[Document], *, attempt: int, made_of: MadeOf, catalogue: Catalogue) -> Summary:
    """Return the summary of a step; the documents are the metric records that one attempt has of it."""
    times = [milliseconds(document) for document in documents]
    return Summary(
        run_id=documents[0]["run_id"],
        attempt=attempt,
        step=documents[0]["step"],
        made_of=made_of,
        first=min(times),
        last=max(times),
        metrics={key: _spread(values, key, catalogue) for key, values in _values(documents).items()},
        stages={stage: _stage(part) for stage, part in _by_stage(documents).items()},
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


def _stage(documents: Sequence[Document]) -> StageSummary:
    times: dict[str, list[int]] = {}
    for document in documents:
        if "host.name" in document:
            times.setdefault(document["host.name"], []).append(milliseconds(document))
    dated = [milliseconds(document) for document in documents if is_dated(document)]
    return StageSummary(
        ranks=_rows({document["rank"] for document in documents if "rank" in document}),
        records=len(documents),
        end=max(dated, default=None),
        host_times={host: statistics.fmean(of_host) for host, of_host in times.items()},
    )


def _rows(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last rank of each unbroken row: hundreds of ranks are mostly one row."""
    found: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1] = found[-1][0], rank
        else:
            found.append((rank, rank))
    return found
