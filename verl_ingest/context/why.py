"""Why a run is as it is: `gather` reads what is needed of it, `Why` says it.

A long run is looked at from its end: its last 500 steps, more only while they are all one episode, 2,000 at most. Older
steps explain nothing about now, and each hundred costs a few searches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import (
    attempts,
    baseline,
    checkpoints,
    episodes,
    errors,
    exits,
    hosts,
    lines,
    onset,
    runs,
    setup,
    step,
)
from verl_ingest.context.attempts import Attempt
from verl_ingest.context.checkpoints import Checkpoint
from verl_ingest.context.dates import settled
from verl_ingest.context.episodes import ENDS_AFTER, Episode, Event, may_ruin
from verl_ingest.context.exits import Exit
from verl_ingest.context.findings import first_action, is_critical
from verl_ingest.context.onset import Signs
from verl_ingest.context.runs import Run
from verl_ingest.context.step import StepContext
from verl_ingest.context.words import DASH, counted, listed, number, ranks
from verl_ingest.query.store import Lines, RunReader, RunRow

LOOK = 500  # steps
FARTHEST = 2_000
LEAST_ASKED, MOST_ASKED = 8, 24  # contexts of steps, by how much there is to read for them
MOST_DOCUMENTS = 100_000
MOST_ATTEMPTS = 3
MOST_CONSEQUENCES = 5
ENDED_AFTER = 2  # steps; the last one of a run that died may be too incomplete to be abnormal
NORMAL, ABNORMAL, CRITICAL, UNKNOWN = "normal", "warning", "critical", "unknown"


@dataclass(frozen=True)
class Why:
    """What is known of a run: its newest step, episodes (oldest first), exit, and where to go back to.

    `looked_at` are the first and last step that were looked at; `failed` the errors after the last step, the one to
    blame first; `now` the context of the newest step; `before` says how earlier attempts ended.
    """

    run: Run
    attempt: int
    looked_at: tuple[int, int] | None
    steps: int
    episodes: Sequence[Episode]
    exit: Exit
    failed: Sequence[Mapping[str, Any]]
    before: Sequence[str]
    checkpoint: Checkpoint | None
    now: StepContext | None
    catalogue: Catalogue

    @property
    def current(self) -> Episode | None:
        """The episode that goes on, or that the run ended in; a few normal steps may be over in a run that goes on."""
        if not self.episodes:
            return None
        last, over = self.episodes[-1], self.looked_at[1] - self.episodes[-1].last
        return last if self._crash(last) or over < (ENDED_AFTER if self._has_failed else ENDS_AFTER) else None

    @property
    def cause(self) -> Event | None:
        """The event that explains the run as it is: the crash, else the first one of the current episode."""
        if self.current is None:
            return None
        return self._crash(self.current) or self.current.cause(self.catalogue)

    @property
    def first_bad(self) -> int | None:
        """The step where the trouble began that the run is in, or was in last; None where there is none."""
        last = self.cause or (self.episodes[-1].cause(self.catalogue) if self.episodes else None)
        return None if last is None else last.first

    @property
    def severity(self) -> str:
        """Return normal, warning, critical, or unknown where there are too few steps to judge by."""
        if self._has_failed:
            return CRITICAL
        if self.current is not None:
            found = (finding for event in self.current.events for finding in (event.finding, *event.others))
            return CRITICAL if any(is_critical(finding, self.catalogue) for finding in found) else ABNORMAL
        return NORMAL if self.steps > baseline.ENOUGH else UNKNOWN

    @property
    def verdict(self) -> str:
        """Return it in a few words."""
        if self._has_failed:
            return self.exit.state
        if self.current is not None:
            return f"abnormal since step {self.cause.first}"
        return "normal" if self.severity == NORMAL else "too few steps to judge by"

    @property
    def sentences(self) -> list[str]:
        """Return at most three sentences: first cause with evidence, what followed, and what was before."""
        said = [self.exit.sentence] if self._has_failed or self.run.last is None else []
        if self.cause is not None:
            said += [self._began(self.cause), *self._then()]
        elif self.failed:
            said.append(errors.sentence(self.failed))
        elif self.severity == UNKNOWN:
            here = counted(self.steps, "step") if self.steps else "No step"
            are = "is" if self.steps <= 1 else "are"
            said.append(f"{here} {are} there; {baseline.ENOUGH} are needed to know what is usual.")
        else:
            said.append(self._normal())
        return [*said, *self.before][:3]

    @property
    def todo(self) -> str | None:
        """Return what to do first: about how the run ended, else the catalogues' first action for the cause."""
        if self._has_failed:
            return troubles.load()[self.exit.reason].first_action
        return first_action(self.cause.finding, self.catalogue, self.run.row.run_id) if self.cause is not None else None

    def entry(self) -> dict[str, Any]:
        """Return it as `why --json` has it."""
        cause = self.cause
        failed = cause.context["errors"] if cause is not None and cause.context["errors"] else self.failed
        return {
            "run_id": self.run.row.run_id,
            "severity": self.severity,
            "verdict": self.verdict,
            "sentences": self.sentences,
            "exit": self.exit.entry(),
            "step": self.run.step,
            "total_steps": self.run.setup.total_steps,
            "attempt": self.attempt,
            **self.run.newest_record(),
            "began": None if cause is None else {"step": cause.first, "time": cause.time},
            "cause": None if cause is None else cause.entry(),
            "first_error": failed[0] if failed else None,
            "then": errors.consequences(failed) if failed else [],
            "episodes": [episode.entry(self.catalogue) for episode in self.episodes],
            "earlier_attempts": list(self.before),
            "checkpoint": None if self.checkpoint is None else self.checkpoint.entry(),
            "resume": None if self.checkpoint is None else self.checkpoint.overrides,
            "todo": self.todo,
            "looked_at": None if self.looked_at is None else dict(zip(("first", "last"), self.looked_at, strict=True)),
            "clock_skew": {} if self.now is None else self.now.body["clock_skew"],
        }

    @property
    def _has_failed(self) -> bool:
        return self.exit.state in ("crashed", "stalled")

    def _crash(self, episode: Episode) -> Event | None:
        """Return the event that is the crash of the run."""
        return next((event for event in episode.events if self.failed and _is_of(event, self.failed[0])), None)

    def _began(self, event: Event) -> str:
        """Say when it began and with what, and what the metric is now."""
        when = f" ({event.time[:19].replace('T', ' ')} UTC)" if event.time else ""
        now = ""
        if event.last > event.first and event.finding.trouble is None and self.now is not None:
            values = {metric["name"]: metric for metric in self.now.body["metrics"]}
            metric = values.get(next(iter(event.finding.metrics), ""))
            if metric is not None:
                now = f" At step {self.now.body['step']} it is {number(metric['mean'], metric['unit'] or '')}."
        return f"Began at step {event.first}{when}: {event.finding.sentence}{now}"

    def _then(self) -> list[str]:
        """Say what came with and after the cause, the rest folded; errors and known troubles before metrics."""

        def weight(event: Event) -> tuple[bool, bool, bool, int]:
            finding, ruins = event.finding, may_ruin(event.finding, self.catalogue)
            is_trouble = finding.trouble is not None and ruins
            return not is_trouble, not is_critical(finding, self.catalogue), not ruins, -event.steps

        others = sorted((event for event in self.current.events if event is not self.cause), key=weight)
        shown = sorted(others[:MOST_CONSEQUENCES], key=lambda event: (weight(event)[0], event.first))
        said = [self._brief(event) for event in shown]
        rest = len(others) - len(said)
        return [f"Also: {listed([*said, *([f'{rest} more'] if rest else [])])}."] if said else []

    def _brief(self, event: Event) -> str:
        """Name an event and its steps in a few words."""
        finding = event.finding
        if finding.trouble is not None:
            what = troubles.load()[finding.trouble].short
            what += f" of {listed(finding.metrics[:2])}" if finding.trouble == "not_finite" and finding.metrics else ""
            what += f" on rank {finding.rank}" if finding.rank is not None else ""
        else:
            what = finding.metrics[0] if finding.metrics else finding.sentence
        if event.first == event.last:
            return f"{what} at step {event.first}"
        ended = event.last <= self.looked_at[1] - ENDS_AFTER
        return f"{what} in steps {event.first}{DASH}{event.last}" if ended else f"{what} from step {event.first}"

    def _normal(self) -> str:
        first, last = self.looked_at
        if not self.episodes:
            return f"Nothing is abnormal in steps {first} to {last}."
        before = self.episodes[-1]
        where = f"step {before.first}" if before.first == before.last else f"steps {before.first}{DASH}{before.last}"
        what = before.cause(self.catalogue).finding.sentence
        return f"Normal since step {before.last + 1}; last abnormal was {where}: {what}"


def explain(run: RunReader, *, catalogue: Catalogue, now: int, window: int = baseline.WINDOW) -> Why:
    """Return why a run is as it is; `now` is in ms since 1970, the `window` steps before are what is usual."""
    newest = run.steps(size=1, newest_first=True)
    documents = settled(run.records(newest[0])) if newest else []
    known = attempts.find(run, documents) if newest else []
    state = runs.as_it_is(run, setup.read(run.setup()), now=now)

    def assemble(number: int) -> StepContext:
        return step.assemble(run, number, catalogue=catalogue, now=now, window=window)

    signs, looked_at, steps = _look_back(run, known, catalogue=catalogue, window=window)
    most = min(max(MOST_DOCUMENTS // max(len(documents), 1), LEAST_ASKED), MOST_ASKED)
    found = episodes.find(signs, assemble, catalogue, most=most)
    newest_context = assemble(_newest(state.row, known, looked_at[1])) if known else None
    if newest_context is not None:
        found = episodes.with_lost_ranks(found, newest_context.body["step"], newest_context.body["ranks"])
    failed = _failed(run, state, assemble)
    begin = found[-1].first if found else None
    return Why(
        run=state,
        attempt=len(known) or 1,
        looked_at=looked_at,
        steps=steps,
        episodes=found,
        exit=exits.tell(state, failed),
        failed=failed,
        before=_earlier(run, known),
        checkpoint=_checkpoint(run, state, begin, looked_at),
        now=newest_context,
        catalogue=catalogue,
    )


def _look_back(
    run: RunReader, known: Sequence[Attempt], *, catalogue: Catalogue, window: int
) -> tuple[dict[int, Signs], tuple[int, int] | None, int]:
    """Return the signs of the last steps, the first and last step looked at, and how many there are."""
    signs: dict[int, Signs] = {}
    first, last, looked, keys = None, None, 0, None
    while looked < LOOK or (looked < FARTHEST and _is_amid_an_episode(signs, first)):
        steps = run.steps(high=None if first is None else first - 1, size=onset.CHUNK, newest_first=True)[::-1]
        if not steps:
            break
        keys = keys or onset.keys(run, steps)
        signs |= onset.scan(run, known, steps, keys, catalogue=catalogue, window=window)
        first, last, looked = steps[0], last or steps[-1], looked + len(steps)
    return signs, None if first is None else (first, last), looked


def _newest(row: RunRow, known: Sequence[Attempt], highest: int) -> int:
    """Return the step that a run is at: the last one in time, of a run whose lines have no times the highest."""
    return highest if row.newest_step is not None and not row.newest_step.dated else known[-1].last_step


def _is_amid_an_episode(signs: Mapping[int, Signs], first: int) -> bool:
    return sum(bool(signs[at].bad) for at in signs if at < first + ENDS_AFTER) > ENDS_AFTER // 2


def _failed(run: RunReader, state: Run, assemble: Callable[[int], StepContext]) -> Sequence[Mapping[str, Any]]:
    """Return the errors that a run crashed with, the one to blame first."""
    if state.state != "crashed":
        return []
    if state.row.newest_error.step is not None:
        return assemble(state.row.newest_error.step).body["errors"]
    wanted = Lines(levels=lines.levels_from("error"))
    return errors.blamed(lines.errors(run.lines(wanted), hosts.clock_skew_at(run)), {})


def _earlier(run: RunReader, known: Sequence[Attempt]) -> list[str]:
    """Say how the last few attempts before this one ended."""
    if len(known) < 2:
        return []
    here = _ranks(attempts.part(run.records(known[-1].last_step), known).get(len(known), []))
    said = []
    for attempt in known[-1 - MOST_ATTEMPTS : -1]:
        own = attempts.part(run.records(attempt.last_step), known).get(attempt.number, [])
        after = attempts.part(run.records(attempt.last_step + 1), known).get(attempt.number, [])
        failed = errors.blamed(lines.errors([*own, *after], hosts.clock_skew_at(run, attempt.last_step)), {})
        lost = here - _ranks(own)
        said.append(exits.of_attempt(attempt.number, attempt.last_step, ranks(lost) if lost else "", failed))
    return said


def _ranks(documents: Sequence[Mapping[str, Any]]) -> set[int]:
    return {document["rank"] for document in documents if "rank" in document}


def _checkpoint(run: RunReader, state: Run, begin: int | None, looked_at: tuple[int, int] | None) -> Checkpoint | None:
    """Return the last checkpoint before the last episode began, of a run without one the last of all."""
    if looked_at is None:
        return None
    return checkpoints.last_before(run, looked_at[1] + 1 if begin is None else begin, state.setup.checkpoints)


def _is_of(event: Event, error: Mapping[str, Any]) -> bool:
    return any(error["time"] == own["time"] for own in event.context["errors"])
