"""Judge every metric of a step: its level against the steps before, its ranks against each other."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_ingest.catalog.metrics import Alarm, Catalogue, Metric
from verl_ingest.context import baseline, pooling
from verl_ingest.context.baseline import Outlier, Usual
from verl_ingest.context.pooling import Pooled, Value
from verl_ingest.query.store import Key, Levels

Spelt = TypeVar("Spelt")

SHORT_NAMES = {"kl_ref": "KL"}
SLOW = 1.5  # times the other ranks' median
SECONDS_PER = {"s": 1.0, "ms": 0.001}
SPEEDS = (*SECONDS_PER, "tokens/s", "tokens/s/GPU")
PER_TOKEN = "ms/token"  # made of a duration that is there too, which says the same
# Steps with this extra work take long and have little throughput, as they should.
EXTRA_WORK = ("testing_time", "save_checkpoint_time")
SLOWED_BY_EXTRA_WORK = ("step_time", "step_throughput")


@dataclass(frozen=True)
class Judged:
    """One metric in one step, what it was in the steps before (`usual`) and in the first steps of the run (`at_first`).

    `meaning` is its entry of the catalogue, None for a stranger.
    """

    key: Key
    meaning: Metric | None
    pooled: Pooled
    usual: Usual | None
    at_first: Usual | None
    limit: float
    outliers: tuple[Outlier, ...]

    @property
    def label(self) -> str:
        """The name that sentences use."""
        return SHORT_NAMES.get(self.quantity, self.key.name)

    @property
    def quantity(self) -> str:
        """The catalogue's name, which all spellings share; of a stranger or one of a family, the metric's own name."""
        return quantity(self.key.name, self.meaning)

    @property
    def unit(self) -> str:
        """Unit, empty for a plain number."""
        return self.meaning.unit if self.meaning else ""

    @property
    def stage(self) -> str | None:
        """Stage of the record; for a driver's record, which speaks of all stages, the stage the metric belongs to."""
        if self.key.stage in (None, "trainer") and self.meaning:
            return self.meaning.stage
        return self.key.stage

    @property
    def z(self) -> float | None:
        """Robust z of the mean against the steps before; None without enough history."""
        return self.usual.z(self.pooled.mean) if self.usual and self.usual.enough else None

    @property
    def deviates(self) -> bool:
        """Whether the mean is beyond the limit, to whichever side."""
        return self.z is not None and abs(self.z) > self.limit

    @property
    def abnormal(self) -> bool:
        """Whether the mean is beyond the limit to the bad side."""
        return self.deviates and is_judged(self.meaning) and is_bad(self.z, self.meaning)

    @property
    def is_bad(self) -> bool:
        """Whether the step is abnormal for this metric."""
        return self.abnormal or bool(self.outliers) or self.alarm is not None

    @property
    def alarm(self) -> Alarm | None:
        """The catalogue's limit that the mean has drifted across, far from what it was in the first steps of the run.

        A slow drift takes the steps before along, so that no step stands out against them. The limits fit one size of
        model, so a run that began beyond one is not held to it.
        """
        if self.meaning is None or self.at_first is None or not self.at_first.enough:
            return None
        mean, first = self.pooled.mean, self.at_first.median
        z = self.at_first.z(mean)
        for alarm in self.meaning.alarms:
            above = alarm.above is not None and first <= alarm.above < mean and z > self.limit
            below = alarm.below is not None and first >= alarm.below > mean and z < -self.limit
            swung = alarm.swing is not None and abs(mean - first) > alarm.swing and abs(z) > self.limit
            if alarm.times is None and (above or below or (swung and is_bad(z, self.meaning))):
                return alarm
        return None

    @property
    def distance(self) -> float:
        """How many sigma it is from usual, over time, since the first steps, or between the ranks: the most of them."""
        drift = self.at_first.z(self.pooled.mean) if self.alarm else 0.0
        return max(abs(z) for z in (self.z or 0.0, drift, *(outlier.z for outlier in self.outliers)))

    @property
    def driver(self) -> Outlier | None:
        """The rank without which the mean would not stand out."""
        if len(self.outliers) != 1 or self.z is None or abs(self.z) < 2:
            return None
        alone = self.outliers[0]
        rest = [value for rank, value in self.pooled.values.items() if rank != alone.rank]
        without = self.usual.z(math.fsum(rest) / len(rest))
        return alone if abs(without) < abs(self.z) / 2 else None

    def entry(self) -> dict[str, Any]:
        """Return the metric as `step --json` has it."""
        usual = self.usual
        return {
            "name": self.key.name,
            "stage": self.stage,
            "unit": self.unit or None,
            "mean": self.pooled.mean,
            "std": self.pooled.std,
            "min": self.pooled.low,
            "max": self.pooled.high,
            "n": self.pooled.n,
            "weight": self.pooled.weight,
            "worst_rank": self.pooled.worst_rank,
            "values": {str(rank): value for rank, value in self.pooled.values.items()},
            "previous": {
                "steps": usual.steps if usual else 0,
                "mean": usual.mean if usual else None,
                "median": usual.median if usual else None,
                "mad": usual.mad if usual else None,
                "z": self.z,
            },
        }


@dataclass(frozen=True)
class Straggler:
    """A rank whose stage takes far longer than on the other ranks."""

    rank: int
    host: str | None
    judged: Judged
    value: float
    others: float  # median of the other ranks

    def entry(self) -> dict[str, Any]:
        """Return the straggler as `step --json` has it."""
        scale = SECONDS_PER[self.judged.unit]
        return {
            "rank": self.rank,
            "host": self.host,
            "stage": self.judged.stage,
            "metric": self.judged.key.name,
            "duration_s": self.value * scale,
            "others_s": self.others * scale,
            "ratio": self.value / self.others,
        }


def quantity(name: str, meaning: Metric | None) -> str:
    """Return the catalogue's name of a metric; of a stranger or one of a family, its own."""
    return meaning.name if meaning is not None and name in meaning.names else name


def best_spellings(judged: Sequence[Judged]) -> list[Judged]:
    """Keep one metric of each quantity: that of the most ranks, then the one that the catalogue names first."""

    def order(metric: Judged) -> tuple[int, int]:
        names = metric.meaning.names if metric.meaning else ()
        return -metric.pooled.n, names.index(metric.key.name) if metric.key.name in names else 0

    return one_spelling(sorted(judged, key=order), lambda metric: (metric.quantity, metric.key.name, metric.stage))


def one_spelling(metrics: Iterable[Spelt], identity: Callable[[Spelt], tuple[str, str, str | None]]) -> list[Spelt]:
    """Keep the first spelling of each quantity, in every stage that has it; `identity` is quantity, name and stage."""
    spelling: dict[str, str] = {}
    found: dict[tuple[str, str | None], Spelt] = {}
    for metric in metrics:
        quantity, name, stage = identity(metric)
        if spelling.setdefault(quantity, name) == name:
            found.setdefault((quantity, stage), metric)
    return list(found.values())


def without_twins(judged: Sequence[Judged]) -> list[Judged]:
    """Keep one of the metrics that are one fraction to the last digit, now and usually: one number under two names."""
    found: dict[object, Judged] = {}
    for metric in sorted(judged, key=lambda metric: not (metric.meaning and metric.meaning.golden)):
        mean, median = metric.pooled.mean, metric.usual.median if metric.usual else None
        found.setdefault(metric.key if mean == round(mean) else (mean, median, metric.pooled.n), metric)
    return list(found.values())


def extra_work(judged: Sequence[Judged]) -> list[Judged]:
    """Return the times of the step's validation and checkpoint."""
    return [metric for metric in judged if metric.quantity in EXTRA_WORK]


def without_expected(judged: Sequence[Judged]) -> list[Judged]:
    """Leave out the whole step's time and throughput where extra work explains them."""
    if not extra_work(judged):
        return list(judged)
    return [metric for metric in judged if metric.quantity not in SLOWED_BY_EXTRA_WORK]


def is_bad(z: float, meaning: Metric | None) -> bool:
    """Tell whether a deviation is to the bad side; of a stranger, either side is."""
    direction = meaning.direction if meaning else "either"
    return direction == "either" or (direction == "up" and z > 0) or (direction == "down" and z < 0)


def is_judged(meaning: Metric | None) -> bool:
    """Tell whether the metric has a bad side of its own at all."""
    return meaning is None or (meaning.direction != "none" and meaning.unit != PER_TOKEN)


def suspects(values: Mapping[Key, Sequence[Value]], catalogue: Catalogue, most: int) -> list[Key]:
    """Return the metrics in which some rank is far from the others, the farthest first."""
    farthest = {
        key: max((abs(z) for z in baseline.apart(_by_rank(numbers)).values()), default=0.0)
        for key, numbers in values.items()
        if is_judged(catalogue.find(key.name))
    }
    far = [key for key, z in farthest.items() if z > baseline.OUTLYING]
    return sorted(far, key=lambda key: -farthest[key])[:most]


def judge(
    values: Mapping[Key, Sequence[Value]],
    levels: Mapping[Key, Levels],
    first_levels: Mapping[Key, Levels],
    rank_values: Mapping[Key, Mapping[int, Mapping[int, float]]],
    catalogue: Catalogue,
    *,
    among: int | None = None,
) -> list[Judged]:
    """Pool and judge each metric of a step against its levels and rank values in the steps before, and at first.

    `among` is how many metrics the step has to judge, where these are but some of them.
    """
    meanings = {key: catalogue.find(key.name) for key in values}
    means = sum(is_judged(meaning) for meaning in meanings.values()) if among is None else among
    single = sum(len(numbers) for key, numbers in values.items() if is_judged(meanings[key]))
    found = []
    for key, numbers in values.items():
        meaning = meanings[key]
        pooled = pooling.pool(numbers, meaning.direction if meaning else "either")
        floor = _floor(meaning)
        usual, at_first = (
            baseline.usual([level.mean for level in of.get(key, {}).values()], **floor) for of in (levels, first_levels)
        )
        limit = baseline.limit(means, usual.steps if usual else 0)
        outliers = baseline.outliers(pooled.values, rank_values.get(key, {}), judged=single, **floor)
        bad = tuple(outlier for outlier in outliers if is_bad(outlier.value - outlier.others, meaning))
        found.append(Judged(key, meaning, pooled, usual, at_first, limit, bad))
    return sorted(found, key=lambda metric: (not is_judged(metric.meaning), -abs(metric.z or 0.0)))


def _floor(meaning: Metric | None) -> dict[str, float]:
    """Return the floor of sigma: speeds vary more than anybody cares; the times of hosts (waits) are far shorter."""
    if meaning is None or meaning.unit not in SPEEDS or meaning.stage == "system":
        return {}
    seconds = SECONDS_PER.get(meaning.unit)
    absolute = 0.0 if seconds is None else baseline.LEAST_SIGMA_S / seconds
    return {"relative": baseline.LEAST_SIGMA_OF_SPEED, "absolute": absolute}


def _by_rank(values: Sequence[Value]) -> dict[int, float]:
    return {value.rank: value.number for value in values if value.rank is not None}


def stragglers(judged: Sequence[Judged], values: Mapping[Key, Sequence[Value]]) -> list[Straggler]:
    """Return the ranks whose duration is over 1.5 times the other ranks' and far outside their spread."""
    found = []
    for metric in judged:
        if metric.unit in SECONDS_PER and metric.meaning.direction == "up":
            hosts = {value.rank: value.host for value in values[metric.key]}
            for rank, z in baseline.apart(metric.pooled.values).items():
                value, others = metric.pooled.values[rank], baseline.others(metric.pooled.values, rank).median
                if z > 2 * baseline.OUTLYING and value > SLOW * others > 0:
                    found.append(Straggler(rank, hosts[rank], metric, value, others))
    return sorted(found, key=lambda straggler: -straggler.value / straggler.others)
