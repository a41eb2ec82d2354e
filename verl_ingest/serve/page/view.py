"""The page of a step as plain values: everything a template shows, nothing it has to work out."""

from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.around import Around
from verl_ingest.context.runs import Run
from verl_ingest.context.step import Evidence, StepContext
from verl_ingest.serve.page import charts, golden, heat, lines, parts, ranks, samples, story
from verl_ingest.serve.page.addresses import Addresses
from verl_ingest.serve.page.golden import Golden
from verl_ingest.serve.page.heat import HeatMap
from verl_ingest.serve.page.lines import LogLines
from verl_ingest.serve.page.parts import AttemptRow, MetricRow, Resources, Stage
from verl_ingest.serve.page.ranks import Ranks
from verl_ingest.serve.page.samples import Sample, ScoreChart
from verl_ingest.serve.page.story import Action, FirstError


@dataclass(frozen=True)
class StepView:
    """The page, from top to bottom."""

    run_id: str
    step: int
    severity: str
    word: str
    facts: tuple[str, ...]
    when: str
    note: str
    sentences: tuple[str, ...]
    more: tuple[str, ...]
    action: Action | None
    error: FirstError | None
    golden: tuple[Golden, ...]
    ranks: Ranks | None
    stages: tuple[Stage, ...]
    resources: Resources | None
    scores: ScoreChart | None
    samples: tuple[Sample, ...]
    longest: tuple[Sample, ...]
    trust: tuple[str, ...]
    attempt_names: tuple[str, ...]
    attempts: tuple[AttemptRow, ...]
    previous: int | None
    next: int | None
    window: tuple[int, int]
    charts: list[dict[str, Any]]
    heat: HeatMap | None
    lines: LogLines
    metrics: tuple[MetricRow, ...]
    addresses: Addresses

    @property
    def is_bad(self) -> bool:
        """Whether something is wrong with the step, so that it matters when that began."""
        return self.severity in (story.CRITICAL, story.ABNORMAL)


def build(
    evidence: Evidence,
    context: StepContext,
    around: Around,
    *,
    catalogue: Catalogue,
    addresses: Addresses,
    note: str = "",
) -> StepView:
    """Put the page of a step together; `note` is a sentence about how the reader came here."""
    body, findings = context.body, context.findings
    named = [name for finding in findings for name in finding.metrics]
    where = ranks.places(document for of in evidence.documents.values() for document in of)
    severity = story.severity(body, findings, catalogue)
    names, attempts = parts.attempts(body)
    return StepView(
        run_id=body["run_id"],
        step=body["step"],
        severity=severity,
        word=story.WORDS[severity],
        facts=_facts(body, around.run),
        when=_when(body["time"]),
        note=note,
        sentences=tuple(body["summary"][: story.SENTENCES]),
        more=tuple(body["summary"][story.SENTENCES :]),
        action=story.action(findings, catalogue, body["run_id"]),
        error=story.first_error(body["errors"], where),
        golden=golden.rows(body, around, named, catalogue),
        ranks=ranks.strip(body, findings, where),
        stages=parts.stages(body),
        resources=parts.resources(body),
        scores=samples.chart(evidence.scores),
        samples=samples.show(evidence.samples),
        longest=samples.show(evidence.longest),
        trust=parts.trust(body),
        attempt_names=names,
        attempts=attempts,
        previous=around.previous,
        next=around.next,
        window=(around.first, around.last),
        charts=charts.data(body["step"], around, catalogue),
        heat=heat.draw(body["metrics"], where, catalogue),
        lines=lines.show(body),
        metrics=parts.metrics(body, named, catalogue),
        addresses=addresses,
    )


def _facts(body: dict[str, Any], run: Run) -> tuple[str, ...]:
    """Say where the step is in its run, and whether the run is alive."""
    of = f" of {body['total_steps']:,}" if body["total_steps"] is not None else ""
    attempts = len(body["attempts"])
    return (
        f"step {body['step']:,}{of}",
        f"attempt {body['attempt']}" + (f" of {attempts}" if attempts > 1 else ""),
        f"run: {run.state}, last record {run.heard}",
    )


def _when(time: dict[str, Any]) -> str:
    """Write when the step was logged, in UTC."""
    if time["first"] is None:
        return ""
    about = "about " if time["estimated"] else ""
    return f"{about}{time['first'][:10]} {time['first'][11:19]}\u2013{time['last'][11:19]} UTC"
