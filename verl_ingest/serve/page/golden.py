"""The golden six of a step: value, what is usual, how far off, a line of the steps around."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue, Metric
from verl_ingest.context.around import Around
from verl_ingest.context.findings import WORDS
from verl_ingest.context.metrics import SHORT_NAMES
from verl_ingest.context.words import DASH, deviation, number, ranks
from verl_ingest.query.store import Key
from verl_ingest.serve.page import sparkline
from verl_ingest.serve.page.sparkline import Sparkline

TITLES = {
    "kl_ref": "KL to reference",
    "entropy": "Entropy",
    "reward_mean": "Reward",
    "advantage_mean": "Advantage mean",
    "advantage_std": "Advantage spread",
    "clip_fraction": "Clip fraction",
}


@dataclass(frozen=True)
class Golden:
    """One of the golden six; `abnormal` where a finding names it, `word` says how."""

    title: str
    name: str
    short: str
    unit: str
    value: str
    usual: str
    z: str
    abnormal: bool
    word: str
    spark: Sparkline


def rows(body: Mapping[str, Any], around: Around, named: Sequence[str], catalogue: Catalogue) -> tuple[Golden, ...]:
    """Return those of the golden six that the run logs around the step; `named` are the metrics of the findings."""
    found = []
    for metric in catalogue.golden:
        key = next((key for key in around.levels if key.name in metric.names), None)
        if key is not None:
            found.append(_row(metric, key, body, around, key.name in named))
    return tuple(found)


def usual_range(around: Around, key: Key, step: int) -> tuple[float, float] | None:
    """Return where nine of ten of the steps before lie; None where there are fewer than ten of them."""
    before = [level.mean for at, level in around.levels[key].items() if at < step]
    if len(before) < 10:
        return None
    cuts = statistics.quantiles(before, n=20, method="inclusive")
    return cuts[0], cuts[-1]


def _row(metric: Metric, key: Key, body: Mapping[str, Any], around: Around, abnormal: bool) -> Golden:
    step = body["step"]
    entry = next((entry for entry in body["metrics"] if entry["name"] == key.name), None)
    nonfinite = [entry for entry in body["nonfinite"] if entry["metric"] == key.name]
    usual = usual_range(around, key, step)
    z = entry["previous"]["z"] if entry else None
    return Golden(
        title=TITLES.get(metric.name, SHORT_NAMES.get(metric.name, metric.name)),
        name=key.name,
        short=metric.short,
        unit=metric.unit if entry else "",
        value=number(entry["mean"]) if entry else WORDS[nonfinite[0]["kind"]] if nonfinite else DASH,
        usual=f"{number(usual[0])} {DASH} {number(usual[1])}" if usual else "no history",
        z=deviation(z),
        abnormal=abnormal,
        word=_word(entry, nonfinite, abnormal, z),
        spark=sparkline.draw(
            sorted((at, level.mean) for at, level in around.levels[key].items()),
            first=around.first,
            last=around.last,
            at=step,
            usual=usual,
            nan=around.nonfinite.get(key.name, ()),
        ),
    )


def _word(
    entry: Mapping[str, Any] | None, nonfinite: Sequence[Mapping[str, Any]], abnormal: bool, z: float | None
) -> str:
    if entry is None:
        return "" if nonfinite else "not logged"
    if nonfinite:
        on = sorted(found["rank"] for found in nonfinite if found["rank"] is not None)
        return WORDS[nonfinite[0]["kind"]] + (f" on {ranks(on)}" if on else "")
    if abnormal and z is not None:
        return "high" if z > 0 else "low"
    return "" if z is not None else "no history"
