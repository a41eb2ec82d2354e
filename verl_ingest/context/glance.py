"""Whether runs are abnormal now, by the golden six in their step summaries alone: cheap enough for a list of runs.

`why` looks at everything about one run, and judges these metrics in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_ingest.catalog.metrics import Catalogue, Metric
from verl_ingest.context import baseline, onset
from verl_ingest.context.episodes import ENDS_AFTER
from verl_ingest.context.onset import Track
from verl_ingest.query.store import Key, Levels, Store

LAST, BAD = 3, 2  # so many of the last steps must be abnormal: one may be so by chance
FIRST = 20  # steps that say what a metric was at first
FAR = 2 * baseline.WINDOW  # steps in which the first abnormal one is looked for


@dataclass(frozen=True)
class Glance:
    """Whether a run is abnormal, and since which step, where that is not longer ago than was looked."""

    is_abnormal: bool
    since: int | None = None


def take(store: Store, newest: Mapping[str, int], catalogue: Catalogue) -> dict[str, Glance]:
    """Return what is known of runs by their newest steps; runs of whose last steps there is no summary are left out.

    Older steps are read only of those that are abnormal.
    """
    names = [name for metric in catalogue.golden for name in metric.names]
    levels = store.golden(newest, names, window=FIRST, look=baseline.WINDOW + LAST)
    found = {run_id: is_abnormal(levels[run_id], step=step, catalogue=catalogue) for run_id, step in newest.items()}
    bad = {run_id: newest[run_id] for run_id, is_bad in found.items() if is_bad}
    farther = store.golden(bad, names, window=FIRST, look=baseline.WINDOW + FAR)
    since = {run_id: began(farther[run_id], step=step, catalogue=catalogue) for run_id, step in bad.items()}
    return {run_id: Glance(is_bad, since.get(run_id)) for run_id, is_bad in found.items() if is_bad is not None}


def is_abnormal(levels: Mapping[str, Levels], *, step: int, catalogue: Catalogue) -> bool | None:
    """Tell whether a run is abnormal whose newest step is `step`; `levels` are those of the golden six, by spelling.

    None where they don't tell: there are too few steps, or none of the last ones.
    """
    tracks = _tracks(levels, catalogue)
    steps = _steps(tracks)
    if len(steps) <= baseline.ENOUGH or steps[-1] <= step - LAST:
        return None
    bad = good = 0
    for at in reversed(steps[-LAST:]):
        if _is_bad(at, tracks, steps[0], catalogue):
            bad += 1
        else:
            good += 1
        if good > LAST - BAD:  # most runs are normal, and looked at no further
            return False
    return bad >= BAD


def began(levels: Mapping[str, Levels], *, step: int, catalogue: Catalogue) -> int | None:
    """Return the first step of the trouble that a run is in, None where it may have begun before what was looked at."""
    tracks = _tracks(levels, catalogue)
    steps = _steps(tracks)
    begin, found = max(step - FAR, steps[0]), None
    for at in reversed([at for at in steps if at >= begin]):
        if found is not None and at < found - ENDS_AFTER:
            return found
        if _is_bad(at, tracks, steps[0], catalogue):
            found = at
    return found if begin == steps[0] else None


def _is_bad(at: int, tracks: Sequence[Track], first: int, catalogue: Catalogue) -> bool:
    here = [track for track in tracks if at in track.steps]
    return bool(onset.bad_means(at, here, catalogue=catalogue, window=baseline.WINDOW, first=first))


def _tracks(levels: Mapping[str, Levels], catalogue: Catalogue) -> list[Track]:
    """Return the levels of each of the golden six that is there, by its best spelling."""
    spelt = {metric.spelling(levels): metric for metric in catalogue.golden}
    return [_track(name, metric, levels[name]) for name, metric in spelt.items() if name is not None]


def _track(name: str, metric: Metric, levels: Levels) -> Track:
    steps = sorted(levels)
    return Track(Key(name, None, False), metric, steps, [levels[at] for at in steps])


def _steps(tracks: Sequence[Track]) -> list[int]:
    return sorted({at for track in tracks for at in track.steps})
