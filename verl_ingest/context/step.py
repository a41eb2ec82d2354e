"""Everything about one step of a run: `gather` reads it from the store, `describe` judges it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import (
    attempts,
    baseline,
    errors,
    findings,
    hosts,
    lines,
    metrics,
    pooling,
    processes,
    samples,
    setup,
    stages,
)
from verl_ingest.context.attempts import Attempt
from verl_ingest.context.dates import is_dated, settled
from verl_ingest.context.findings import Finding
from verl_ingest.context.metrics import Judged
from verl_ingest.context.pooling import Value
from verl_ingest.context.words import counted, listed, number, ranks
from verl_ingest.errors import NotFound
from verl_ingest.query.store import Document, Key, Levels, RunReader, Scores, Segment, StagePresence
from verl_ingest.query.times import milliseconds

SUSPECT_METRICS = 10
MOST_RANK_VALUES = 8_192  # per metric; with many ranks fewer steps do to know what is usual
RUNNING_S = 60.0
FAILED = 3  # ranks whose host is looked up; the first ones are told
LONGEST_STEP_S = 6 * 3_600.0


@dataclass(frozen=True)
class Evidence:
    """What the store has about a step: its documents by attempt, the steps before it, the first steps."""

    run_id: str
    step: int
    known: Sequence[Attempt]
    documents: Mapping[int, Sequence[Document]]
    hosts: Mapping[int, str]  # rank -> host, of the ranks that logged metrics or failed
    values: Mapping[Key, Sequence[Value]]
    levels: Mapping[Key, Levels]
    first_levels: Mapping[Key, Levels]
    presence: Mapping[str | None, StagePresence]
    rank_values: Mapping[Key, Mapping[int, Mapping[int, float]]]
    samples: Sequence[Document]  # those with the lowest scores
    longest: Sequence[Document]
    scores: Mapping[str, Scores]  # of the step (`now`) and of the steps `before`
    total_steps: int | None
    may_grow: bool

    @property
    def attempt(self) -> int:
        """The newest attempt that logged the step."""
        return max(self.documents)

    @property
    def newest(self) -> Sequence[Document]:
        """Documents of the newest attempt, in order of time."""
        return self.documents[self.attempt]


@dataclass(frozen=True)
class StepContext:
    """The context of a step: `body` is what `step --json` prints, `findings` what is abnormal about it."""

    body: dict[str, Any]
    findings: tuple[Finding, ...]


def assemble(
    run: RunReader, step: int, *, catalogue: Catalogue, now: int, window: int = baseline.WINDOW
) -> StepContext:
    """Return the context of a step; `now` is in ms since 1970, the `window` steps before are what is usual.

    Raises NotFound when the run has no such step.
    """
    return describe(gather(run, step, catalogue=catalogue, window=window, now=now), catalogue=catalogue, now=now)


def gather(run: RunReader, step: int, *, catalogue: Catalogue, window: int, now: int) -> Evidence:
    """Read what the store has about a step; raises NotFound when that is nothing."""
    documents = processes.with_ranks(run, settled(run.records(step)))
    known = attempts.find(run, documents)
    by_attempt = attempts.part(documents, known)
    attempt = max(by_attempt, default=1)
    here = (attempts.segments(known, attempt, step, step) or [Segment(step, step)])[0]
    before = attempts.segments(known, attempt, max(step - window, 0), step - 1)
    lowest = run.samples(here, samples.LOWEST)
    if not documents and not lowest:
        raise NotFound(f"Run '{run.run_id}' has no step {step}{_near(nearest(run, step))}.")
    begin = min((attempt.first_step for attempt in known), default=step)
    start = attempts.segments(known, attempt, begin, min(begin + baseline.WINDOW, step - window) - 1)
    recent = attempts.segments(known, attempt, max(step - stages.RECENT, 0), step - 1)
    values = pooling.last_values(by_attempt.get(attempt, []))
    suspects = metrics.suspects(values, catalogue, SUSPECT_METRICS)
    most = max((len(values[key]) for key in suspects), default=1)
    steps = max(min(window, MOST_RANK_VALUES // most), baseline.ENOUGH)
    history = run.history([*start, *before], recent, list(values))
    levels, first_levels = _split(history.levels, step - window)
    return Evidence(
        run_id=run.run_id,
        step=step,
        known=known,
        documents=by_attempt or {attempt: []},
        hosts=_hosts(run, by_attempt.get(attempt, [])),
        values=values,
        levels=levels,
        first_levels=first_levels,
        presence=history.presence,
        rank_values=run.rank_values(attempts.segments(known, attempt, max(step - steps, 0), step - 1), suspects),
        samples=lowest,
        longest=run.samples(here, samples.LONGEST, order="longest") if lowest else [],
        scores=run.scores(samples.parts(here, before, window)) if lowest else {},
        total_steps=setup.read(run.setup()).total_steps,
        may_grow=_is_young(documents, now) and not run.steps(low=step + 1, size=1, newest_first=False),
    )


def describe(evidence: Evidence, *, catalogue: Catalogue, now: int) -> StepContext:
    """Judge a step and put its context together."""
    step, documents, presence = evidence.step, evidence.newest, evidence.presence
    judged = metrics.judge(evidence.values, evidence.levels, evidence.first_levels, evidence.rank_values, catalogue)
    own = next((attempt for attempt in evidence.known if attempt.number == evidence.attempt), None)
    times = stages.times(
        judged, evidence.levels, documents, presence, step, begins=bool(own and own.first_step == step)
    )
    skew = hosts.clock_skew(documents, presence)
    failed, nonfinite = errors.blamed(lines.errors(documents, skew), evidence.hosts), _nonfinite(documents)
    logs = [line.entry() for line in lines.fold(filter(_is_plain_line, documents))]
    slow = metrics.stragglers(judged, evidence.values)
    completeness = _completeness(documents, stages.expected_records(presence), now)
    in_progress = evidence.may_grow and _is_fresh(completeness["age_s"], times)
    missing = {} if in_progress else stages.missing_ranks(documents, presence)
    reasons = (
        *findings.of_errors(failed),
        *findings.of_nonfinite(nonfinite, catalogue),
        *findings.of_warnings(logs, nonfinite),
        *findings.of_missing(missing),
        *findings.of_metrics(judged, slow, evidence.levels),
        *findings.of_loss(judged),
        *findings.of_samples(evidence.scores, judged),
        *findings.of_step_time(times, judged),
        *([] if in_progress or missing else findings.of_completeness(completeness)),
    )
    body = {
        "run_id": evidence.run_id,
        "step": step,
        "attempt": evidence.attempt,
        "attempts": _attempts(evidence, catalogue),
        "time": {**_times(documents), "estimated": bool(documents) and not any(map(is_dated, documents))},
        "summary": [
            *([finding.sentence for finding in reasons] or [_no_findings(evidence, judged)]),
            *_notes(evidence, judged, in_progress, completeness["age_s"]),
        ],
        "total_steps": evidence.total_steps,
        "stages": [time.entry() for time in times],
        "ranks": sorted({document["rank"] for document in documents if "rank" in document}),
        "missing_ranks": missing,
        "metrics": [metric.entry() for metric in judged],
        "nonfinite": nonfinite,
        "errors": failed,
        "logs": logs,
        "samples": [samples.entry(document) for document in evidence.samples],
        "longest": [samples.entry(document) for document in evidence.longest],
        "scores": samples.scores_entry(evidence.scores),
        "anomalies": [],
        "stragglers": [straggler.entry() for straggler in slow],
        "clock_skew": skew,
        "resources": hosts.resources(judged, evidence.values, _suspect_host(reasons, evidence.hosts)),
        "completeness": completeness,
        "links": {"page": None, "kibana": None, "grafana": None},
    }
    return StepContext(body, reasons)


def _split(levels: Mapping[Key, Levels], first: int) -> tuple[dict[Key, Levels], dict[Key, Levels]]:
    """Part levels into those of the steps from `first` on and those before it."""
    later = {key: {step: level for step, level in of.items() if step >= first} for key, of in levels.items()}
    earlier = {key: {step: level for step, level in of.items() if step < first} for key, of in levels.items()}
    return later, earlier


def _is_young(documents: Sequence[Document], now: int) -> bool:
    return bool(documents) and now - milliseconds(documents[-1]) < LONGEST_STEP_S * 1_000


def _attempts(evidence: Evidence, catalogue: Catalogue) -> list[dict[str, Any]]:
    """Return every attempt that logged the step, oldest first, with its golden six."""
    found = []
    for attempt, documents in sorted(evidence.documents.items()):
        values = evidence.values if attempt == evidence.attempt else pooling.last_values(documents)
        golden = {}
        for metric in catalogue.golden:
            keys = [key for key in values if key.name in metric.names]
            if keys:
                best = min(keys, key=lambda key: (-len(values[key]), metric.names.index(key.name)))
                golden[best.name] = pooling.pool(values[best], metric.direction).mean
        found.append({"attempt": attempt, **_times(documents), "metrics": golden})
    return found


def _times(documents: Sequence[Document]) -> dict[str, str | None]:
    return {
        "first": documents[0]["@timestamp"] if documents else None,
        "last": documents[-1]["@timestamp"] if documents else None,
    }


def _nonfinite(documents: Sequence[Document]) -> list[dict[str, Any]]:
    """Return each value that was not finite, once per metric, rank and stage; `null` only where no line says more."""
    found: dict[tuple[str, int | None, str | None], str] = {}
    for document in documents:
        kinds = dict(reversed(flag.split(":", 1)) for flag in document.get("flags", ()) if ":" in flag)
        for name in document.get("nonfinite", ()):
            key, kind = (name, document.get("rank"), document.get("stage")), kinds.get(name, "nan")
            if kind != "null" or key not in found:
                found[key] = kind
    return [{"metric": name, "rank": rank, "stage": stage, "kind": kind} for (name, rank, stage), kind in found.items()]


def _completeness(documents: Sequence[Document], expected: int | None, now: int) -> dict[str, Any]:
    return {
        "expected": expected,
        "found": sum(document["kind"] == "metric" for document in documents),
        "flagged": sum("flags" in document for document in documents),
        "age_s": round((now - milliseconds(documents[-1])) / 1_000) if documents else None,
    }


def _is_fresh(age_s: float | None, times: Sequence[stages.StageTime]) -> bool:
    """Tell whether more records of the step may still come."""
    usual = next((time.median for time in times if time.stage == "trainer" and time.median), 0.0)
    return age_s is not None and age_s < max(RUNNING_S, 3 * usual)


def _is_plain_line(document: Document) -> bool:
    return lines.is_line(document) and not lines.is_error(document)


def _hosts(run: RunReader, documents: Sequence[Document]) -> dict[int, str]:
    """Return rank -> host; that of a rank that failed before it logged anything is known from other steps."""
    placed = (document for document in documents if {"rank", "host.name"} <= set(document))
    found = {document["rank"]: document["host.name"] for document in placed}
    failed = {document["rank"] for document in documents if lines.is_error(document) and "rank" in document}
    for rank in sorted(failed - set(found))[:FAILED]:
        known = [process for process in run.processes(rank=rank) if process.host is not None]
        if known:
            found[rank] = max(known, key=lambda process: process.last).host
    return found


def _suspect_host(reasons: Sequence[Finding], host_of: Mapping[int, str]) -> str | None:
    """Return the host of the first finding that speaks of a host or a rank."""
    return next(filter(None, (finding.host or host_of.get(finding.rank) for finding in reasons)), None)


def _no_findings(evidence: Evidence, judged: Sequence[Judged]) -> str:
    """Say that nothing is abnormal, or that it is too early to say so."""
    steps = max((metric.usual.steps for metric in judged if metric.usual), default=0)
    if steps < baseline.ENOUGH:
        before = (
            f"only {counted(steps, 'step')} before it {'is' if steps == 1 else 'are'}"
            if steps
            else "no step before it is"
        )
        return f"Nothing stands out, but {before} there to judge by ({baseline.ENOUGH} are needed)."
    many = len({rank for metric in judged for rank in metric.pooled.values})
    on = f" on {counted(many, 'rank')}" if many else ""
    are = f"{counted(len(judged), 'metric')}{on} {'is' if len(judged) == 1 else 'are'}"
    return f"Step {evidence.step} is normal: {are} as in the {steps} steps before."


def _notes(evidence: Evidence, judged: Sequence[Judged], in_progress: bool, age_s: float | None) -> list[str]:
    """Say what is worth knowing and not abnormal."""
    notes = [f"The step may still be in progress: its last record is {age_s:,} s old."] if in_progress else []
    extra = [f"{metric.label} {number(metric.pooled.high, metric.unit)}" for metric in metrics.extra_work(judged)]
    notes += [f"It did extra work: {listed(extra)}."] if extra else []
    here = {document["rank"] for document in evidence.newest if "rank" in document}
    for attempt, documents in sorted(evidence.documents.items())[:-1]:
        times = _times(documents)
        lost = here - {document["rank"] for document in documents if "rank" in document}
        without = f", without {ranks(lost)}" if lost else ""
        notes.append(f"Attempt {attempt} logged this step before, until {times['last'][11:19]} UTC{without}.")
    return notes


def nearest(run: RunReader, step: int) -> list[int]:
    """Return the steps right before and after one that is not there."""
    below = run.steps(high=step, size=1, newest_first=True)
    return below + run.steps(low=step, size=1, newest_first=False)


def _near(steps: Sequence[int]) -> str:
    near = " and ".join(map(str, steps))
    return f"; the nearest {'is' if len(steps) == 1 else 'are'} {near}" if steps else ""
