"""What the charts need, as JSON: the metrics around the step with their least and greatest rank."""

from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.around import Around
from verl_ingest.serve.page.golden import usual_range

DIGITS = 6


def data(step: int, around: Around, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return one chart a metric: rows are [step, least rank, mean, greatest rank]; `usual` is where most means lie."""
    found = []
    for key, levels in around.levels.items():
        metric = catalogue.find(key.name)
        usual = usual_range(around, key, step)
        found.append(
            {
                "name": key.name,
                "unit": metric.unit if metric else "",
                "step": step,
                "range": [around.first, around.last],
                "usual": None if usual is None else [_short(value) for value in usual],
                "nan": [at for at in around.nonfinite.get(key.name, ()) if around.first <= at <= around.last],
                "rows": [
                    [at, _short(level.low), _short(level.mean), _short(level.high)]
                    for at, level in sorted(levels.items())
                ],
            }
        )
    return found


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
