"""The samples of a step: the worst, the longest, their scores and empty responses beside those of the steps before."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.context import attempts
from verl_ingest.context.dates import settled
from verl_ingest.context.words import counted, number
from verl_ingest.errors import NotFound
from verl_ingest.query.store import LAST_STEP, Document, RunReader, Scores, Segment

LOWEST = 5
LONGEST = 3
TEXT = 2_000  # characters of a prompt or response
TEXTS = ("input", "output", "ground_truth")
ALL = 10_000  # samples of a step, more than which one search can't return
NOW, BEFORE = "now", "before"
FEW_EMPTY = 3
MUCH_EMPTY = 0.05
MORE_EMPTY = 3.0  # times the share of the steps before


def parts(here: Segment, before: Sequence[Segment], window: int) -> dict[str, Sequence[Segment]]:
    """Return the steps whose scores are compared; a run of samples alone has no attempts to tell them by."""
    return {NOW: [here], BEFORE: before or [Segment(max(here.first - window, 0), here.first - 1)]}


def emptied(scores: Mapping[str, Scores]) -> str | None:
    """Say that many more responses are empty than in the steps before; None where that is not so."""
    if NOW not in scores or scores[NOW].empty < FEW_EMPTY:
        return None
    now, before = scores[NOW], scores.get(BEFORE)
    share = now.empty / now.n
    usual = before.empty / before.n if before and before.n else 0.0
    if share < MUCH_EMPTY or share < MORE_EMPTY * usual:
        return None
    than = f"; in the steps before {number(100 * usual)} % were" if before and before.n else ""
    return f"{now.empty:,} of {counted(now.n, 'response')} ({number(100 * share)} %) are empty{than}."


def entry(document: Document) -> dict[str, Any]:
    """Return a sample without the prefix of its fields, long texts cut."""
    return {name: value[:TEXT] if isinstance(value, str) else value for name, value in fields(document).items()}


def fields(document: Document) -> dict[str, Any]:
    """Return a sample without the prefix of its fields."""
    return {name.removeprefix("sample."): value for name, value in document.items() if name.startswith("sample.")}


def scores_entry(scores: Mapping[str, Scores]) -> dict[str, Any] | None:
    """Return the scores as `step --json` has them: edges of the bins, and the counts between them."""
    if NOW not in scores:
        return None
    any_part = scores[NOW]
    edges = [any_part.low + any_part.width * number for number in range(len(any_part.counts) + 1)]
    parts = {
        name: {"n": part.n, "empty": part.empty, "mean": part.mean, "counts": list(part.counts)}
        for name, part in scores.items()
    }
    return {"edges": edges, **parts}


def find(run: RunReader, step: int, *, order: str, most: int, text: str | None) -> list[Document]:
    """Return samples of a step as its newest attempt logged it: the first of an order that hold a text.

    Raises NotFound when the step has no samples.
    """
    documents = settled(run.records(step))
    known = attempts.find(run, documents)
    newest = max(attempts.part(documents, known), default=1)
    here = (attempts.segments(known, newest, step, step) or [Segment(step, step)])[0]
    found = run.samples(here, most if text is None else ALL, order=order)
    if not found:
        raise NotFound(f"Step {step} of run '{run.run_id}' has no samples; {_nearest(run, step)}.")
    return [document for document in found if text is None or _holds(document, text.lower())][:most]


def _nearest(run: RunReader, step: int) -> str:
    """Name the steps right before and after one without samples that have some."""
    before = run.samples(Segment(0, step - 1), 1, order="last") if step else []
    steps = [document["step"] for document in (*before, *run.samples(Segment(step + 1, LAST_STEP), 1, order="first"))]
    if not steps:
        return "rollout dumps are where they come from, and none of this run are loaded"
    return f"the nearest that {'has' if len(steps) == 1 else 'have'} some: {' and '.join(map(str, steps))}"


def of_prompt(run: RunReader, prompt_id: str) -> list[Document]:
    """Return the samples of one prompt over the steps; raises NotFound when there are none."""
    found = run.prompt(prompt_id)
    if not found:
        raise NotFound(
            f"Run '{run.run_id}' has no sample with the prompt id {prompt_id}; --json of a step shows the ids."
        )
    return found


def _holds(document: Document, text: str) -> bool:
    return any(text in document.get(f"sample.{field}", "").lower() for field in TEXTS)
