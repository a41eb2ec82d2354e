"""One metric of a run over its steps, and several smoothed alike."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts
from verl_ingest.context.dates import settled
from verl_ingest.errors import NotFound
from verl_ingest.query.store import Key, Level, RunReader, Segment

MOST_STEPS = 2_000
ALIKE = 4


@dataclass(frozen=True)
class Series:
    """A metric as the newest attempt logged each step; `key` is the spelling that most records have."""

    run_id: str
    key: Key
    unit: str
    levels: Mapping[int, Level]

    def entry(self) -> dict[str, Any]:
        """Return the series as JSON has it: points are [step, mean, least, greatest]."""
        return {
            "run_id": self.run_id,
            "metric": self.key.name,
            "stage": self.key.stage,
            "unit": self.unit,
            "points": [[step, level.mean, level.low, level.high] for step, level in sorted(self.levels.items())],
        }


def read(run: RunReader, name: str, *, catalogue: Catalogue, most: int = MOST_STEPS) -> Series:
    """Return a metric over the last `most` steps; `name` is as printed in the logs, or that of the catalogue.

    Raises NotFound when the run has no such metric.
    """
    metric = catalogue.find(name)
    names = metric.names if metric is not None and metric.name == name else (name,)
    counts = run.keys(names)
    if not counts:
        raise NotFound(f"Run '{run.run_id}' has no metric {name}{_alike(run, name, catalogue)}")
    key = _best(counts, names)
    steps = run.steps(size=most, newest_first=True)
    known = attempts.find(run, settled(run.records(steps[0])))
    segments = attempts.segments(known, len(known), steps[-1], steps[0]) or [Segment(steps[-1], steps[0])]
    levels = run.history(segments, [], [key]).levels[key]
    return Series(run.run_id, key, metric.unit if metric is not None else "", levels)


def _alike(run: RunReader, name: str, catalogue: Catalogue) -> str:
    """Name the metrics of the newest step that are called alike."""
    newest = run.steps(size=1, newest_first=True)
    here = {metric for step in newest for document in run.records(step) for metric in document.get("metrics", ())}
    here |= {metric.name for metric in map(catalogue.find, here) if metric is not None and here & set(metric.names)}
    wanted, lower = name.lower(), {metric.lower(): metric for metric in sorted(here)}
    close = [lower[each] for each in lower if wanted in each] or [
        lower[each] for each in difflib.get_close_matches(wanted, lower, n=ALIKE)
    ]
    return f"; did you mean {' or '.join(close[:ALIKE])}?" if close else "."


def _best(counts: Mapping[Key, int], names: Sequence[str]) -> Key:
    """Choose the spelling of the most records; of those with about as many, the one named first.

    The best one may have a few less, where it was not finite.
    """
    most = max(counts.values())
    return min((key for key, count in counts.items() if 2 * count > most), key=lambda key: names.index(key.name))


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average, with `weight` (0 to under 1) on what was before.

    Divided by the weights so far, so that it does not begin at 0 (Kingma and Ba 2014, section 3).
    """
    found, average = [], 0.0
    for count, value in enumerate(values, 1):
        average = weight * average + (1 - weight) * value
        found.append(average / (1 - math.pow(weight, count)))
    return found
