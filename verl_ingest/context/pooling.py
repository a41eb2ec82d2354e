"""Pool one step's values over ranks: weighted mean, population std, least, greatest, worst rank."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_ingest.query.store import Document, Key


@dataclass(frozen=True)
class Value:
    """One metric's last value on one rank (None: the driver's, over all ranks), and the number of items behind it."""

    number: float
    rank: int | None
    weight: float | None
    host: str | None


@dataclass(frozen=True)
class Pooled:
    """One metric over all ranks in one step; `weight` is the sum of the weights, where every value has one."""

    mean: float
    std: float
    low: float
    high: float
    n: int
    weight: float | None
    worst_rank: int | None
    values: Mapping[int, float]


def last_values(documents: Iterable[Document]) -> dict[Key, list[Value]]:
    """Return each metric's last value per rank; the documents are of one step and attempt, in order of time.

    Where ranks logged a metric, a driver's value of the same stage is left out: it is made of theirs.
    """
    found: dict[Key, dict[int | None, Value]] = {}
    for document in documents:
        if document["kind"] == "metric":
            rank = document.get("rank")
            for name, number in document.get("metrics", {}).items():
                value = Value(number, rank, document.get("weight"), document.get("host.name"))
                found.setdefault(Key(name, document.get("stage"), rank is not None), {})[rank] = value
    return {
        key: list(by_rank.values())
        for key, by_rank in found.items()
        if key.ranked or key._replace(ranked=True) not in found
    }


def pool(values: Sequence[Value], direction: str) -> Pooled:
    """Pool one metric's values; `direction` is the catalogue's word for which way is bad.

    The mean and the std are weighted by the number of items where every value has one, else every value counts once.
    """
    numbers = [value.number for value in values]
    weights = [value.weight for value in values]
    weighted = all(weight is not None for weight in weights) and sum(weights) > 0
    if not weighted:
        weights = [1.0] * len(values)
    total = math.fsum(weights)
    mean = math.fsum(weight * number for weight, number in zip(weights, numbers, strict=True)) / total
    variance = math.fsum(weight * (number - mean) ** 2 for weight, number in zip(weights, numbers, strict=True)) / total
    by_rank = {value.rank: value.number for value in values if value.rank is not None}
    return Pooled(
        mean=mean,
        std=math.sqrt(variance),
        low=min(numbers),
        high=max(numbers),
        n=len(values),
        weight=total if weighted else None,
        worst_rank=worst_rank(by_rank, direction),
        values=dict(sorted(by_rank.items())),
    )


def worst_rank(values: Mapping[int, float], direction: str) -> int | None:
    """Return the rank farthest to the bad side; where neither side is the bad one, the farthest from the median."""
    if not values:
        return None
    if direction in ("up", "down"):
        sign = 1 if direction == "up" else -1
        return max(values, key=lambda rank: sign * values[rank])
    median = statistics.median(values.values())
    return max(values, key=lambda rank: abs(values[rank] - median))
