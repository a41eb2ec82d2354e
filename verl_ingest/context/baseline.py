"""Judge a value against the same run's steps before it, and a rank against the other ranks.

Robust z = (value - median) / sigma with sigma = 1.4826 x MAD (Iglewicz and Hoaglin 1993, How to Detect and Handle
Outliers; Leys et al. 2013, J. Exp. Soc. Psychol. 49:764). Where more than half of the history is one number, MAD is 0
and sigma is 1.2533 x the mean distance from the median (Iglewicz and Hoaglin). Sigma has a floor, 1 % of the median:
what is steadier than that can be many sigma away without anybody caring. For durations and speeds it is 5 % and 0.05 s.

A step has some twenty metrics on every rank, so a fixed limit of 3 sigma would cry wolf every few steps. `limit` grows
with the number of values judged, so that about one healthy step in a hundred is called abnormal.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

WINDOW = 50
ENOUGH = 10
FALSE_ALARM = 0.01
FAREST = 999.0
LEAST_SIGMA = 0.01  # times the median
LEAST_SIGMA_OF_SPEED = 0.05
LEAST_SIGMA_S = 0.05
OUTLYING = 3.5  # Iglewicz and Hoaglin's limit
SUSPECTS = 8  # ranks looked at per metric
FEW = 32  # of more ranks than this, one has no say in their median and MAD


@dataclass(frozen=True)
class Usual:
    """What a value usually is: median and median absolute deviation (MAD) of `steps` values, robust sigma."""

    steps: int
    mean: float
    median: float
    mad: float
    sigma: float

    @property
    def enough(self) -> bool:
        """Whether there is enough history to judge by."""
        return self.steps >= ENOUGH

    def z(self, value: float) -> float:
        """Return how many sigma a value is above the median, at most 999 either way."""
        distance = value - self.median
        if abs(distance) >= FAREST * self.sigma:
            return 0.0 if distance == 0 else FAREST if distance > 0 else -FAREST
        return distance / self.sigma


def usual(history: Sequence[float], *, relative: float = LEAST_SIGMA, absolute: float = 0.0) -> Usual | None:
    """Return what the history says, None where there is none; sigma is at least `absolute`, and `relative` x median."""
    if not history:
        return None
    median = statistics.median(history)
    distances = [abs(value - median) for value in history]
    mad = statistics.median(distances)
    sigma = 1.4826 * mad if mad > 0 else 1.2533 * statistics.fmean(distances)
    return Usual(
        steps=len(history),
        mean=statistics.fmean(history),
        median=median,
        mad=mad,
        sigma=max(sigma, absolute, relative * abs(median)),
    )


def limit(judged: int, history: int) -> float:
    """Return the |z| beyond which a value is abnormal when `judged` values are judged at once.

    The quantile of the normal distribution for a family-wise rate of 1 % (Bonferroni), widened because sigma is
    estimated from a short history: 1 + 9 / (n - 6) fits the quantiles of robust z of normal values for n = 10..100 and
    two-sided rates of 0.002 to 0.0005 (40,000 simulated histories each) to within a tenth.
    """
    quantile = statistics.NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(judged, 1)))
    return quantile * (1 + 9 / (max(history, ENOUGH) - 6))


@dataclass(frozen=True)
class Outlier:
    """A rank that is far from the others now, and farther than it usually is."""

    rank: int
    value: float
    others: float  # median of the other ranks
    z: float  # of its distance from the ranks' median, against its distances in the steps before


def apart(values: Mapping[int, float]) -> dict[int, float]:
    """Return how many robust sigma the farthest ranks are from the other ranks; needs three ranks."""
    if len(values) < 3:
        return {}
    everyone = usual(list(values.values()))
    farthest = sorted(values, key=lambda rank: -abs(values[rank] - everyone.median))[:SUSPECTS]
    return {rank: (others(values, rank) if len(values) <= FEW else everyone).z(values[rank]) for rank in farthest}


def others(values: Mapping[int, float], rank: int) -> Usual:
    """Return what is usual among the other ranks (leave-one-out)."""
    return usual([value for other, value in values.items() if other != rank])


def outliers(
    values: Mapping[int, float],
    history: Mapping[int, Mapping[int, float]],
    *,
    judged: int,
    relative: float = LEAST_SIGMA,
    absolute: float = 0.0,
) -> list[Outlier]:
    """Return the ranks that left the others at this step, the farthest first.

    `history` is step -> rank -> value of the steps before. A rank must be far from the others now (`apart`), and its
    distance from the ranks' median far from what it was: sigma is that of its own distances or the median rank's,
    whichever is larger, with the same floor as in `usual`.
    """
    suspects = [rank for rank, z in apart(values).items() if abs(z) > OUTLYING]
    if not suspects:
        return []
    distances = _distances(history)
    sampled = {*suspects, *sorted(distances)[:FEW]}
    usual_distance = {rank: usual(distances.get(rank, [])) for rank in sampled}
    known = [spread.sigma for spread in usual_distance.values() if spread is not None]
    median = statistics.median(values.values())
    found = []
    for rank in suspects:
        own = usual_distance[rank]
        if own is not None and own.enough:
            sigma = max(own.sigma, statistics.median(known), absolute, relative * abs(median))
            z = replace(own, sigma=sigma).z(values[rank] - median)
            if abs(z) > limit(judged, own.steps):
                found.append(Outlier(rank, values[rank], others(values, rank).median, z))
    return sorted(found, key=lambda outlier: -abs(outlier.z))


def _distances(history: Mapping[int, Mapping[int, float]]) -> dict[int, list[float]]:
    """Return each rank's distances from the ranks' median, of the steps with three ranks or more."""
    found: dict[int, list[float]] = {}
    for values in history.values():
        if len(values) >= 3:
            median = statistics.median(values.values())
            for rank, value in values.items():
                found.setdefault(rank, []).append(value - median)
    return found
