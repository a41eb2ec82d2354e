"""How a step stands in the story of its run: when its trouble began, where to go back to, what was before and after.

It takes long to find, so the page comes without and asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_ingest.context.checkpoints import Checkpoint
from verl_ingest.context.episodes import Episode, Event
from verl_ingest.context.findings import Finding


@dataclass(frozen=True)
class Place:
    """Where a step stands: `onset` is the step where its trouble began, `previous` and `next` where others did.

    `checkpoint` is the last healthy one, `resume` the overrides that go back to it.
    """

    began: str
    onset: int | None
    checkpoint: str
    resume: str
    previous: int | None
    next: int | None


def tell(episodes: Sequence[Episode], checkpoint: Checkpoint | None, step: int, findings: Sequence[Finding]) -> Place:
    """Return where a step with these findings stands; the checkpoint is the last one before the last episode."""
    starts = sorted({event.first for episode in episodes for event in episode.events})
    episode = next((episode for episode in episodes if episode.first <= step <= episode.last), None)
    began, onset = _began(episode, step, findings) if episode is not None and findings else ("", None)
    healthy = checkpoint if episode is not None and episode is episodes[-1] else None
    return Place(
        began=began,
        onset=onset,
        checkpoint="" if healthy is None else f"step {healthy.step}" + (f", {healthy.path}" if healthy.path else ""),
        resume=(healthy.overrides or "") if healthy is not None else "",
        previous=max((start for start in starts if start < step), default=None),
        next=min((start for start in starts if start > step), default=None),
    )


def _began(episode: Episode, step: int, findings: Sequence[Finding]) -> tuple[str, int | None]:
    own = [event for event in episode.events if event.first <= step <= event.last and _is_of(event, findings[0])]
    if own:
        event = min(own, key=lambda event: event.first)
        if event.first < step:
            return f"It began at step {event.first}.", event.first
        return (f"It began at this step and goes on until step {event.last}." if event.last > step else ""), None
    first = episode.events[0]
    if first.first < step:
        return f"Trouble began at step {first.first}: {first.finding.sentence}", first.first
    return "", None


def _is_of(event: Event, finding: Finding) -> bool:
    """Tell whether a finding is what the event is about."""
    if finding.trouble is not None:
        return event.finding.trouble == finding.trouble
    return bool(set(finding.metrics) & set(event.finding.metrics))
