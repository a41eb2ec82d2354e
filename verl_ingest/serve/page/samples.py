"""Samples of a step: the histogram of their scores now and before, the worst ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_ingest.context.words import first_line, number
from verl_ingest.query.store import Document, Scores

WORST = 3
TEXT = 1_500  # characters of a text that are in the page; the rest is fetched on demand
LINE = 160


@dataclass(frozen=True)
class Bin:
    """One bin of the histogram: its scores, the share of the samples now and before."""

    scores: str
    now: float
    before: float


@dataclass(frozen=True)
class ScoreChart:
    """Scores now and in the steps before."""

    n: int
    mean: str
    n_before: int
    mean_before: str
    empty: int
    empty_before: str
    bins: tuple[Bin, ...]
    top: float


@dataclass(frozen=True)
class Text:
    """One text of a sample: as much as the page holds, and how long it is in all; None where it was not kept."""

    name: str
    part: str
    shown: str | None
    length: int
    cut: bool


@dataclass(frozen=True)
class Sample:
    """One sample; `line` is its response in one line."""

    event_id: str
    score: str
    line: str
    uid: str
    split: str
    texts: tuple[Text, ...]


def chart(scores: Mapping[str, Scores]) -> ScoreChart | None:
    """Return the histogram; None where the step has no scores."""
    now, before = scores.get("now"), scores.get("before")
    if now is None or not now.n:
        return None
    bins = []
    for place, (count, count_before) in enumerate(zip(now.counts, before.counts, strict=True)):
        low = now.low + place * now.width
        bins.append(
            Bin(
                f"{number(low)} to {number(low + now.width)}", count / now.n, count_before / before.n if before.n else 0
            )
        )
    return ScoreChart(
        n=now.n,
        mean=number(now.mean),
        n_before=before.n,
        mean_before=number(before.mean),
        empty=now.empty,
        empty_before=number(100 * before.empty / before.n, "%") if before.n else "",
        bins=tuple(bins),
        top=max(max(each.now, each.before) for each in bins),
    )


def show(documents: Sequence[Document]) -> tuple[Sample, ...]:
    """Return samples in the order in which they come."""
    return tuple(_sample(document) for document in documents)


def texts(document: Document) -> dict[str, str | None]:
    """Return the whole texts of a sample, as the page fetches them on demand."""
    return {name: document.get(f"sample.{name}") for name in ("input", "output", "ground_truth")}


def _sample(document: Document) -> Sample:
    whole = texts(document)
    answer = whole["output"]
    return Sample(
        event_id=document["event_id"],
        score=number(document.get("sample.score")),
        line="(text not kept)" if answer is None else first_line(answer, LINE) or "(empty)",
        uid=str(document.get("sample.uid", "")),
        split=document.get("sample.split", ""),
        texts=tuple(
            _text(title, name, whole[name], document.get(f"sample.{name}_length"))
            for title, name in (("Prompt", "input"), ("Response", "output"), ("Expected", "ground_truth"))
            if name != "ground_truth" or whole[name] is not None
        ),
    )


def _text(title: str, part: str, text: str | None, length: int | None) -> Text:
    if text is None:
        return Text(title, part, None, length or 0, cut=False)
    return Text(title, part, text[:TEXT], len(text), cut=len(text) > TEXT)
