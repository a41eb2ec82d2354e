"""Two runs side by side: how their configurations differ, their metrics at one step and over the steps both have."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import curves
from verl_ingest.context.series import Series
from verl_ingest.errors import NotFound
from verl_ingest.query.store import Lines, RunReader

RECENT = 50  # steps up to the one compared
ABSENT = "\u2013"

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """One metric of two runs; None where a run lacks it."""

    name: str
    series: tuple[Series | None, Series | None]

    @property
    def common(self) -> list[int]:
        """The steps that both have, in order."""
        first, second = self.series
        return sorted(set(first.levels) & set(second.levels)) if first is not None and second is not None else []

    def at(self, step: int) -> tuple[float | None, float | None]:
        """Return the means of both at a step."""
        first, second = (None if found is None else found.levels.get(step) for found in self.series)
        return (None if first is None else first.mean), (None if second is None else second.mean)

    def entry(self, step: int | None) -> dict[str, Any]:
        """Return the metric as `compare --json` has it; differences are the second less the first."""
        first, second = (None, None) if step is None else self.at(step)
        differences = {at: self._difference(at) for at in self.common if step is None or at <= step}
        recent = list(differences.values())[-RECENT:]
        largest = max(differences, key=lambda at: abs(differences[at]), default=None)
        return {
            "name": self.name,
            "unit": next((found.unit for found in self.series if found is not None), ""),
            "names": [None if found is None else found.key.name for found in self.series],
            "values": [first, second],
            "difference": None if None in (first, second) else second - first,
            "steps": len(differences),
            "recent_difference": statistics.fmean(recent) if recent else None,
            "largest": None if largest is None else {"step": largest, "difference": differences[largest]},
        }

    def _difference(self, step: int) -> float:
        first, second = self.at(step)
        return second - first


@dataclass(frozen=True)
class Comparison:
    """Two runs: their configurations (None where a run printed none), the step compared, and the metrics."""

    run_ids: tuple[str, str]
    configs: tuple[Config | None, Config | None]
    step: int | None
    pairs: Sequence[Pair]

    def entry(self) -> dict[str, Any]:
        """Return the comparison as `compare --json` has it."""
        changed = differences(*self.configs) if None not in self.configs else None
        return {
            "runs": list(self.run_ids),
            "config": changed,
            "configs": [config is not None for config in self.configs],
            "step": self.step,
            "metrics": [pair.entry(self.step) for pair in self.pairs],
        }


def compare(
    first: RunReader, second: RunReader, names: Sequence[str], *, at: int | None, catalogue: Catalogue
) -> Comparison:
    """Compare two runs in the golden six and the metrics `names`, at a step or the newest one that both have.

    Raises NotFound where neither run has a metric that is named.
    """
    wanted = dict.fromkeys((*(metric.name for metric in catalogue.golden), *names))
    pairs = [Pair(name, (_read(first, name, catalogue), _read(second, name, catalogue))) for name in wanted]
    for pair in pairs:
        if pair.series == (None, None) and pair.name in names:
            raise NotFound(f"Neither '{first.run_id}' nor '{second.run_id}' has the metric {pair.name}.")
    common = [step for pair in pairs for step in pair.common]
    return Comparison(
        run_ids=(first.run_id, second.run_id),
        configs=(config(first), config(second)),
        step=max(common, default=None) if at is None else at,
        pairs=[pair for pair in pairs if pair.series != (None, None)],
    )


def differences(*configs: Config) -> list[dict[str, Any]]:
    """Return the settings that differ, by name; ABSENT stands for one that is not there."""
    rows = {key: [config.get(key, ABSENT) for config in configs] for key in sorted({*chain(*configs)})}
    return [
        {"key": key, "values": values} for key, values in rows.items() if any(value != values[0] for value in values)
    ]


def _read(run: RunReader, name: str, catalogue: Catalogue) -> Series | None:
    try:
        return curves.find(run, name, catalogue)
    except NotFound:
        return None


def config(run: RunReader) -> Config | None:
    """Return the configuration that the newest launch printed."""
    printed = [document.get("extra", {}).get("config") for document in run.lines(Lines(event="config"))]
    return next((config for config in reversed(printed) if isinstance(config, dict)), None)
