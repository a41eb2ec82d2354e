"""What happened, in words: verdict, cause, what to do first, the first error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import baseline, errors
from verl_ingest.context.findings import Finding, first_action, is_critical
from verl_ingest.context.words import first_line, pids, ranks
from verl_ingest.serve.page.ranks import Place, whereabouts

SENTENCES = 3
MESSAGE = 240  # characters of an error on the first screen
CRITICAL = "critical"
ABNORMAL = "abnormal"
NORMAL = "normal"
UNKNOWN = "unknown"
WORDS = {CRITICAL: "Critical", ABNORMAL: "Abnormal", NORMAL: "Normal", UNKNOWN: "Too early to say"}


@dataclass(frozen=True)
class FirstError:
    """The error to blame: on whom, where, its message, its innermost frames, what followed."""

    who: str
    where: str
    time: str
    message: str
    frames: tuple[str, ...]
    then: tuple[str, ...]


@dataclass(frozen=True)
class Action:
    """What to do first, and why it may be: likeliest causes of the metric named first."""

    sentence: str
    causes: tuple[str, ...] = ()


def severity(body: Mapping[str, Any], findings: Sequence[Finding], catalogue: Catalogue) -> str:
    """Return the severity of a step with these findings; unknown where there are too few steps before it."""
    if any(is_critical(finding, catalogue) for finding in findings):
        return CRITICAL
    if findings:
        return ABNORMAL
    steps = max((metric["previous"]["steps"] for metric in body["metrics"]), default=0)
    return NORMAL if steps >= baseline.ENOUGH else UNKNOWN


def action(findings: Sequence[Finding], catalogue: Catalogue, run_id: str) -> Action | None:
    """Return what to do about the first finding that the catalogues know, and its causes where those are no rank's."""
    for finding in findings:
        sentence = first_action(finding, catalogue, run_id)
        if sentence is not None:
            named = [] if finding.trouble is not None or finding.alone else map(catalogue.find, finding.metrics)
            metric = next((metric for metric in named if metric is not None and metric.first_action), None)
            return Action(sentence, () if metric is None else metric.causes[:SENTENCES])
    return None


def first_error(found: Sequence[Mapping[str, Any]], where: Mapping[int, Place]) -> FirstError | None:
    """Return the error to blame, None where there is none."""
    if not found:
        return None
    first = found[0]
    place = where.get(first["ranks"][0]) if len(first["ranks"]) == 1 else None
    known = Place(
        host=first["host"] or (place.host if place else None),
        gpu=first["gpu"] if first["gpu"] is not None else place.gpu if place else None,
        pid=first["pids"][0] if len(first["pids"]) == 1 else place.pid if place else None,
    )
    return FirstError(
        who=ranks(first["ranks"]) if first["ranks"] else pids(first["pids"]),
        where=whereabouts(known),
        time=first["time"],
        message=first_line(first["message"], MESSAGE),
        frames=tuple(first["frames"]) or _frames(found),
        then=tuple(errors.consequences(found)),
    )


def _frames(found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the frames of the traceback that tells the first error again, for an error that is but a line."""
    first = found[0]
    again = (error for error in found[1:] if error["ranks"] == first["ranks"] and error["kind"] == first["kind"])
    return next((tuple(error["frames"]) for error in again if error["frames"]), ())
