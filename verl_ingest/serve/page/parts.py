"""Small parts of the first screen: stages, resources, attempts, how far the data can be trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.metrics import is_judged
from verl_ingest.context.words import DASH, counted, deviation, duration, number, ranks

SLOW = 1.5  # times the median


@dataclass(frozen=True)
class Stage:
    """One stage; widths are of a hundred, the longest being the whole width."""

    name: str
    duration: str
    usual: str
    width: float
    usual_width: float
    word: str


@dataclass(frozen=True)
class Resources:
    """Rows of (metric, value, to compare with) under two headings."""

    headings: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class MetricRow:
    """One metric in the table of all metrics."""

    name: str
    stage: str
    cells: tuple[str, ...]
    named: bool


@dataclass(frozen=True)
class AttemptRow:
    """One attempt that logged the step, with its golden six."""

    number: int
    last: str
    cells: tuple[str, ...]


def stages(body: Mapping[str, Any]) -> tuple[Stage, ...]:
    """Return the stages whose duration is known."""
    known = [stage for stage in body["stages"] if stage["duration_s"] is not None]
    longest = max((time for stage in known for time in (stage["duration_s"], stage["median_s"] or 0)), default=0) or 1
    return tuple(_stage(stage, longest) for stage in known)


def resources(body: Mapping[str, Any]) -> Resources | None:
    """Return the bad host beside the median host; where no host is bad, the median host beside what is usual."""
    found = body["resources"]
    if not found:
        return None
    host, median = found["host"], f"median of {counted(found['hosts'], 'host')}"
    usual = {metric["name"]: metric["previous"]["median"] for metric in body["metrics"]}
    rows = []
    for name, metric in found["metrics"].items():
        values = (metric["median"], usual.get(name)) if host is None else (metric["value"], metric["median"])
        rows.append((name, *(number(value, metric["unit"] or "") for value in values)))
    return Resources((median, "usual") if host is None else (host, median), tuple(rows))


def attempts(body: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[AttemptRow, ...]]:
    """Return the names of the golden six and a row for each attempt that logged the step; nothing for just one."""
    if len(body["attempts"]) < 2:
        return (), ()
    names = tuple(dict.fromkeys(name for attempt in body["attempts"] for name in attempt["metrics"]))
    rows = tuple(
        AttemptRow(attempt["attempt"], attempt["last"], tuple(number(attempt["metrics"].get(name)) for name in names))
        for attempt in body["attempts"]
    )
    return names, rows


def metrics(body: Mapping[str, Any], named: Sequence[str], catalogue: Catalogue) -> tuple[MetricRow, ...]:
    """Return all metrics, those that a finding names first."""
    ordered = sorted(body["metrics"], key=lambda metric: metric["name"] not in named)
    return tuple(
        MetricRow(
            name=metric["name"],
            stage=metric["stage"] or "",
            cells=(
                number(metric["mean"]),
                number(metric["previous"]["median"]),
                deviation(metric["previous"]["z"]) if is_judged(catalogue.find(metric["name"])) else DASH,
                number(metric["min"]),
                number(metric["max"]),
                metric["unit"] or "",
                f"rank {metric['worst_rank']}" if metric["min"] < metric["max"] else "",
            ),
            named=metric["name"] in named,
        )
        for metric in ordered
    )


def trust(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Say how much of the step is here, how old it is, which clocks were set right."""
    complete = body["completeness"]
    expected, found = complete["expected"], complete["found"]
    of = f" of {expected:,}" if expected is not None and expected >= found else ""
    parts = [f"{found:,}{of} metric records", f"{complete['flagged']:,} flagged"]
    if complete["age_s"] is not None:
        parts.append(f"{duration(complete['age_s'])} old")
    skews = body["clock_skew"]
    if len(skews) == 1:
        [(host, skew)] = skews.items()
        parts.append(f"clock of {host} {skew * 1_000:+,.0f} ms, corrected")
    elif skews:
        worst = max(map(abs, skews.values()))
        parts.append(f"clocks of {len(skews)} hosts up to {worst * 1_000:,.0f} ms off, corrected")
    if body["missing_ranks"]:
        parts.append(f"missing {ranks({rank for absent in body['missing_ranks'].values() for rank in absent})}")
    return tuple(parts)


def _stage(stage: Mapping[str, Any], longest: float) -> Stage:
    took, usual = stage["duration_s"], stage["median_s"]
    slow = usual and took > SLOW * usual
    return Stage(
        name="whole step" if stage["stage"] == "trainer" else stage["stage"],
        duration=duration(took),
        usual=duration(usual) if usual is not None else "",
        width=round(100 * took / longest, 1),
        usual_width=round(100 * (usual or 0) / longest, 1),
        word=f"{took / usual:.1f} times the median" if slow else "",
    )
