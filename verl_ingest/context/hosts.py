"""Hosts of a step: clocks that are ahead or behind, and the resources of the bad host beside the median host."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_ingest.context import baseline, stages
from verl_ingest.context.metrics import Judged, is_bad
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import Document, Key, RunReader, Segment, StagePresence
from verl_ingest.query.times import seconds

LEAST_SKEW_S = 0.05
LEAST_PAIRS = 5


def clock_skew(documents: Iterable[Document], presence: Mapping[str | None, StagePresence]) -> dict[str, float]:
    """Return how many seconds each host's clock is ahead of the median host's, where that is sure.

    The hosts of one stage log a step at nearly the same time, since they wait for each other; a difference that is the
    same in every stage and step is the clock's. Hosts within 0.05 s, or with a difference that varies by more than half
    of itself (MAD), are left out. Of two hosts, the one that is behind counts as right.
    """
    moments = [times for stage in presence.values() for times in stage.host_times.values()]
    moments += _moments(documents)
    hosts = {host for times in moments for host in times}
    if len(hosts) < 2:
        return {}
    gaps: dict[str, list[float]] = {host: [] for host in hosts}
    for times in moments:
        if len(times) > 1:
            middle = statistics.median(times.values())
            for host, time in times.items():
                gaps[host].append((time - middle) / 1_000)
    ahead = {host: statistics.median(gap) for host, gap in gaps.items() if len(gap) >= LEAST_PAIRS}
    if not ahead:
        return {}
    reference = statistics.median_low(ahead.values())
    return {
        host: round(skew - reference, 3)
        for host, skew in sorted(ahead.items())
        if abs(skew - reference) >= LEAST_SKEW_S
        and statistics.median(abs(gap - skew) for gap in gaps[host]) <= abs(skew - reference) / 2
    }


def clock_skew_at(run: RunReader, step: int | None = None) -> dict[str, float]:
    """Return the same for a step, or the newest, and those just before it, read from the store."""
    steps = run.steps(size=1, newest_first=True) if step is None else [step]
    if not steps:
        return {}
    recent = [Segment(max(steps[0] - stages.RECENT, 0), steps[0])]
    return clock_skew([], run.history([], recent, []).presence)


def true_seconds(document: Document, skew: Mapping[str, float]) -> float:
    """Return when a document was written, by a clock that is right, in seconds since 1970."""
    return seconds(document) - skew.get(document.get("host.name", ""), 0.0)


def resources(judged: Sequence[Judged], values: Mapping[Key, Sequence[Value]], suspect: str | None) -> dict[str, Any]:
    """Return the system metrics of the bad host beside their median over the hosts, {} where there are none.

    The bad host is `suspect` (that of the rank named first) or the one farthest from the others to the bad side; host
    and values are None when no host stands out.
    """
    by_host = [(metric, _by_host(values[metric.key])) for metric in judged if metric.stage == "system"]
    hosts = {host for _, means in by_host for host in means}
    if not hosts:
        return {}
    bad = suspect if suspect in hosts else _farthest(by_host)
    return {
        "host": bad,
        "hosts": len(hosts),
        "metrics": {
            metric.key.name: {
                "unit": metric.unit or None,
                "value": means.get(bad),
                "median": statistics.median(means.values()),
            }
            for metric, means in by_host
            if means
        },
    }


def _moments(documents: Iterable[Document]) -> list[Mapping[str, float]]:
    """Return, for each stage of one step, each host's mean time in milliseconds."""
    times: dict[str | None, dict[str, list[float]]] = {}
    for document in documents:
        if document["kind"] == "metric" and "host.name" in document:
            of_stage = times.setdefault(document.get("stage"), {})
            of_stage.setdefault(document["host.name"], []).append(seconds(document) * 1_000)
    return [{host: statistics.fmean(at) for host, at in hosts.items()} for hosts in times.values()]


def _by_host(values: Sequence[Value]) -> dict[str, float]:
    numbers: dict[str, list[float]] = {}
    for value in values:
        if value.host is not None:
            numbers.setdefault(value.host, []).append(value.number)
    return {host: statistics.fmean(of_host) for host, of_host in numbers.items()}


def _farthest(by_host: Sequence[tuple[Judged, Mapping[str, float]]]) -> str | None:
    """Return the host that is far from the others in some metric, to its bad side."""
    farthest, found = baseline.OUTLYING, None
    for metric, means in by_host:
        numbered = dict(enumerate(means.values()))
        for number, z in baseline.apart(numbered).items():
            if abs(z) > farthest and is_bad(z, metric.meaning):
                farthest, found = abs(z), list(means)[number]
    return found
