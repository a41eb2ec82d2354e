"""The page of a run as plain values: why it is as it is, where to look."""

from dataclasses import dataclass

from verl_ingest.context.episodes import Episode, Event
from verl_ingest.context.why import Why
from verl_ingest.context.words import DASH, duration
from verl_ingest.links import page
from verl_ingest.serve.page import story
from verl_ingest.serve.page.story import FirstError

EPISODES = 12
# Severity of a run -> that of a verdict, which is how it is coloured.
SEVERITIES = {"normal": story.NORMAL, "warning": story.ABNORMAL, "critical": story.CRITICAL, "unknown": story.UNKNOWN}


@dataclass(frozen=True)
class Happening:
    """Something abnormal: its steps, the address of the first one, what it was."""

    steps: str
    address: str
    sentence: str


@dataclass(frozen=True)
class RunView:
    """The page from top to bottom; `episodes` come newest first, each as its cause and what came with it."""

    run_id: str
    address: str
    severity: str
    verdict: str
    facts: tuple[str, ...]
    sentences: tuple[str, ...]
    todo: str | None
    checkpoint: str
    resume: str | None
    error: FirstError | None
    episodes: tuple[tuple[Happening, tuple[Happening, ...]], ...]
    earlier: int
    choices: tuple[tuple[str, str], ...]


def build(why: Why, *, base: str) -> RunView:
    """Put the page of a run together; `base` is where the service answers."""
    run_id, healthy = why.run.row.run_id, why.checkpoint
    failed = why.cause.context["errors"] if why.cause is not None and why.cause.context["errors"] else why.failed
    shown = why.episodes[-EPISODES:]
    return RunView(
        run_id=run_id,
        address=page.run(base, run_id),
        severity=SEVERITIES[why.severity],
        verdict=why.verdict,
        facts=_facts(why),
        sentences=tuple(why.sentences),
        todo=why.todo,
        checkpoint="" if healthy is None else f"step {healthy.step}" + (f", {healthy.path}" if healthy.path else ""),
        resume=None if healthy is None else healthy.overrides,
        error=story.first_error(failed, {}),
        episodes=tuple(_episode(episode, why, base) for episode in reversed(shown)),
        earlier=len(why.episodes) - len(shown),
        choices=_choices(why, base),
    )


def _facts(why: Why) -> tuple[str, ...]:
    run = why.run
    of = f" of {run.setup.total_steps:,}" if run.setup.total_steps is not None else ""
    return (
        "no step yet" if run.step is None else f"step {run.step:,}{of}",
        f"attempt {why.attempt}",
        f"{run.state}, last record {run.heard}",
        *([f"{duration(run.eta_s)} to go"] if run.eta_s is not None else []),
    )


def _episode(episode: Episode, why: Why, base: str) -> tuple[Happening, tuple[Happening, ...]]:
    cause = episode.cause(why.catalogue)
    others = tuple(_happening(event, why, base) for event in episode.events if event is not cause)
    return _happening(cause, why, base), others


def _happening(event: Event, why: Why, base: str) -> Happening:
    steps = f"step {event.first}" if event.first == event.last else f"steps {event.first}{DASH}{event.last}"
    return Happening(steps, page.step(base, why.run.row.run_id, event.first), event.finding.sentence)


def _choices(why: Why, base: str) -> tuple[tuple[str, str], ...]:
    run_id = why.run.row.run_id
    newest = [] if why.run.step is None else [("Newest step", page.step(base, run_id, why.run.step))]
    began = [] if why.cause is None else [("Where it began", page.step(base, run_id, why.cause.first))]
    tracker = why.run.setup.tracker
    outside = [("Tracker", tracker)] if tracker and tracker.startswith(("http://", "https://")) else []
    return (*began, *newest, ("Compare", page.compare(base, run_id)), *outside)
