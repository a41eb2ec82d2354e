"""When a run was abnormal: steps that may be so become events, events that follow on each other an episode.

An event is what begins at one step: the metrics that leave their range, a rank that parts from the others, an error.
Whether it is one is asked of the context of that step; the other steps of the event are known by their signs alone, so
that a long episode costs no more than a short one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.findings import Finding
from verl_ingest.context.onset import Signs
from verl_ingest.context.step import StepContext

ENDS_AFTER = 10  # normal steps
FAR_APART = 7.0  # sigma of the spread over ranks; what is nearer is seldom a finding
ASKED = (0, 2, 5)  # the first steps of an event may not quite be abnormal, by the measure of their own context
TROUBLED, UNEVEN = "troubled", "uneven"
UNEVENNESS = ("missing_rank", "missing_records", "long_step")
SLOWNESS = ("straggler",)
HARMLESS = (*SLOWNESS, "long_step", "missing_records", "tool_timeout")
LASTS = 3  # steps


@dataclass(frozen=True)
class Event:
    """Something abnormal: what the context of its first step says of it, and how many steps have its signs."""

    first: int
    last: int
    steps: int
    finding: Finding
    others: tuple[Finding, ...]  # that began with it
    context: Mapping[str, Any]  # body of the first step

    @property
    def time(self) -> str | None:
        """When its first step began."""
        return self.context["time"]["first"]

    @property
    def silent(self) -> set[int]:
        """The ranks that fell silent, where that is the event."""
        absent = self.context["missing_ranks"].values() if self.finding.trouble == "missing_rank" else ()
        return {rank for ranks in absent for rank in ranks}

    def entry(self) -> dict[str, Any]:
        """Return the event as `why --json` has it."""
        finding = self.finding
        return {
            "first": self.first,
            "last": self.last,
            "steps": self.steps,
            "time": self.time,
            "sentence": finding.sentence,
            "with": [other.sentence for other in self.others],
            "metrics": list(finding.metrics),
            "other_metrics": [name for other in self.others for name in other.metrics],
            "trouble": finding.trouble,
            "rank": finding.rank,
            "host": finding.host,
        }


@dataclass(frozen=True)
class Episode:
    """Events with fewer than ten normal steps between them, in order."""

    events: tuple[Event, ...]

    @property
    def first(self) -> int:
        """The onset."""
        return self.events[0].first

    @property
    def last(self) -> int:
        """The last step that is abnormal."""
        return max(event.last for event in self.events)

    @property
    def steps(self) -> int:
        """How many steps the longest event has."""
        return max(event.steps for event in self.events)

    def cause(self, catalogue: Catalogue) -> Event:
        """Return the event that likely brought the others about.

        It is one of the first ten steps: the first critical one that lasts, else the first critical, else the first.
        """
        early = [event for event in self.events if event.first <= self.first + ENDS_AFTER]
        critical = [event for event in early if may_ruin(event.finding, catalogue)]
        lasting = [event for event in critical if event.steps >= LASTS]
        return next(iter([*lasting, *critical, *early]))

    def entry(self, catalogue: Catalogue) -> dict[str, Any]:
        """Return the episode as `why --json` has it."""
        return {
            "first": self.first,
            "last": self.last,
            "steps": self.steps,
            "sentence": self.cause(catalogue).finding.sentence,
            "events": [event.entry() for event in self.events],
        }


@dataclass(frozen=True)
class Candidate:
    """Subjects (metrics by their catalogue names, or other signs) that began at about the same step."""

    subjects: frozenset[str]
    at: tuple[int, ...]
    sigmas: float  # of the farthest metric in the first step


def find(
    signs: Mapping[int, Signs], assemble: Callable[[int], StepContext], catalogue: Catalogue, *, most: int
) -> list[Episode]:
    """Return the episodes, oldest first; `assemble` gives the context of a step, and is asked at most `most` times.

    The newest events are asked first, so where there are too many, the oldest are left out.
    """
    seen: dict[int, StepContext] = {}

    def ask(step: int) -> StepContext | None:
        if step not in seen and len(seen) < most:
            seen[step] = assemble(step)
        return seen.get(step)

    found = [_event(candidate, ask, catalogue) for candidate in _weightiest(candidates(signs))]
    return part(sorted((event for event in found if event), key=lambda event: (event.first, -event.steps)))


def candidates(signs: Mapping[int, Signs]) -> list[Candidate]:
    """Return what may be events, in order of their first steps."""
    spans: dict[str, list[list[int]]] = {}
    subjects = {at: _subjects(signs[at]) for at in sorted(signs)}
    for at, present in subjects.items():
        for subject in present:
            runs = spans.setdefault(subject, [])
            gap = 1 if subject in (TROUBLED, UNEVEN) else ENDS_AFTER
            if runs and at - runs[-1][-1] <= gap:
                runs[-1].append(at)
            else:
                runs.append([at])
    by_start: dict[tuple[int, str], dict[str, list[int]]] = {}
    for subject, runs in spans.items():
        for run in runs:
            kind = subject if subject in (TROUBLED, UNEVEN) else ""  # an error is not the metrics that leave with it
            by_start.setdefault((run[0], kind), {})[subject] = run
    return [
        Candidate(
            subjects=frozenset(found),
            at=tuple(max(found.values(), key=len)),
            sigmas=max(subjects[start][subject] for subject in found),
        )
        for (start, _), found in sorted(by_start.items())
    ]


def with_lost_ranks(found: Sequence[Episode], step: int, ranks: Iterable[int]) -> list[Episode]:
    """Let the silence of a rank last until `step` where the rank is not among those that logged it.

    What a step lacks is told by the ten steps before, which lack it too after a while.
    """
    here = set(ranks)
    events = [event for episode in found for event in episode.events]
    return part([replace(event, last=step) if event.silent - here else event for event in events])


def part(events: Sequence[Event]) -> list[Episode]:
    """Part events, in order of their first steps, into episodes."""
    groups: list[list[Event]] = []
    for event in events:
        if groups and event.first - max(before.last for before in groups[-1]) <= ENDS_AFTER:
            groups[-1].append(event)
        else:
            groups.append([event])
    return [Episode(tuple(group)) for group in groups]


def may_ruin(finding: Finding, catalogue: Catalogue) -> bool:
    """Tell whether a finding may be what ruins a run: one of the golden six, or a trouble that is not harmless."""
    if finding.trouble is not None:
        return finding.trouble not in HARMLESS
    return any((meaning := catalogue.find(name)) is not None and meaning.golden for name in finding.metrics)


def _subjects(signs: Signs) -> dict[str, float]:
    """Return what a step's signs speak of, and how many sigma of it; other signs than metrics count as far."""
    found = {quantity: z for quantity, z in signs.apart.items() if z > FAR_APART}
    for quantity, z in signs.bad.items():
        found[quantity] = max(z, found.get(quantity, 0.0))
    other = {name: FAR_APART for name, is_so in ((TROUBLED, signs.troubled), (UNEVEN, signs.uneven)) if is_so}
    return {**found, **other}


def _weightiest(found: Sequence[Candidate]) -> list[Candidate]:
    """Sort candidates for asking: troubles and lasting ones first, the newest of them; then those farthest off."""

    def weight(candidate: Candidate) -> tuple[bool, float]:
        is_heavy = TROUBLED in candidate.subjects or len(candidate.at) >= LASTS
        return is_heavy, candidate.at[0] if is_heavy else candidate.sigmas

    return sorted(found, key=weight, reverse=True)


def _event(candidate: Candidate, ask: Callable[[int], StepContext | None], catalogue: Catalogue) -> Event | None:
    """Return the event that a candidate is, None where the contexts of its first steps say nothing of it."""
    for place in ASKED:
        if place >= len(candidate.at):
            return None
        at = candidate.at[place]
        context = ask(at)
        if context is None:
            return None
        own = [finding for finding in context.findings if _speaks_of(finding, candidate.subjects, catalogue)]
        own.sort(key=lambda finding: not may_ruin(finding, catalogue))
        if own:
            steps = candidate.at[place:]
            return Event(at, steps[-1], len(steps), own[0], tuple(own[1:]), context.body)
    return None


def _speaks_of(finding: Finding, subjects: frozenset[str], catalogue: Catalogue) -> bool:
    if finding.trouble in UNEVENNESS:
        return UNEVEN in subjects
    if finding.trouble is not None and finding.trouble not in SLOWNESS:
        return TROUBLED in subjects
    quantities = {catalogue.names_of(name)[0] for name in finding.metrics}
    return bool(quantities & subjects)
