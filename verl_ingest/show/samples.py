"""Samples in a terminal: those of a step's context, whole ones, one prompt over the steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.context import samples
from verl_ingest.context.words import counted, first_line, number
from verl_ingest.query.store import Document

PROMPT, RESPONSE = 400, 1_200  # characters of each that are shown
DOT = " \u00b7 "
GAP = 2
WORST = 3
BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
HEADINGS = ("step", "score", "length", "response")


def of_step(body: Mapping[str, Any], width: int) -> RenderableType | None:
    """Return the worst samples of a step's context, a line each, and its scores beside those of the steps before."""
    if not body["samples"]:
        return None
    table = Table(box=None, show_header=False, padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    worst = body["samples"][:WORST]
    scores = [number(sample.get("score")) for sample in worst]
    for sample, score in zip(worst, scores, strict=True):
        answer = Text(first_line(_text(sample, "output")))
        answer.truncate(width - max(map(len, scores)) - GAP, overflow="ellipsis")
        table.add_row(score, answer)
    shown = [Text("samples with the lowest scores", style="bold"), table]
    return Group(*shown, *([_scores(body["scores"])] if body["scores"] is not None else []))


def _scores(scores: Mapping[str, Any]) -> Text:
    """Draw how the scores spread, now and before, and how many responses are empty."""
    edges = scores["edges"]
    text = Text(f"scores {number(edges[0])} to {number(edges[-1])}  ", style="bold")
    for name in ("now", "before"):
        part = scores.get(name)
        if part is not None and part["n"]:
            highest = max(part["counts"])
            bars = "".join(BARS[-(-count * (len(BARS) - 1) // highest)] for count in part["counts"])
            empty = f", {part['empty']:,} empty" if part["empty"] else ""
            text.append(f"{name} {bars} ({counted(part['n'], 'sample')}{empty})  ", style="not bold")
    text.rstrip()
    return text


def render(documents: Sequence[Document]) -> RenderableType:
    """Return the samples one below the other."""
    return Group(*(part for document in documents for part in (*_sample(samples.fields(document)), Text())))


def render_prompt(documents: Sequence[Document], *, width: int) -> RenderableType:
    """Return one prompt, and what came of it in each step, a line each."""
    first = samples.fields(documents[0])
    rows = [_row(document["step"], samples.fields(document)) for document in documents]
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == HEADINGS[-1] else "right", no_wrap=True)
    widths = [max(map(len, column)) + GAP for column in zip(HEADINGS, *rows, strict=True)]
    for *cells, response in rows:
        shown = Text(response)
        shown.truncate(width - sum(widths[:-1]), overflow="ellipsis")
        table.add_row(*cells, shown)
    return Group(*_part("prompt", _text(first, "input"), PROMPT), Text(), table)


def _row(step: int, sample: Mapping[str, Any]) -> tuple[str, str, str, str]:
    response = " ".join(_text(sample, "output").split())
    return str(step), number(sample.get("score")), number(sample.get("output_length")), response


def _sample(sample: Mapping[str, Any]) -> list[Text]:
    named = [f"{name} {sample[name]}" for name in ("split", "prompt_id", "uid") if name in sample]
    length = [counted(sample["output_length"], "character")] if "output_length" in sample else []
    title = Text(f"score {number(sample.get('score'))}", style="bold")
    title.append(f"{DOT}{DOT.join([*named, *length])}", style="not bold dim")
    truth = _part("truth", _text(sample, "ground_truth"), PROMPT) if "ground_truth" in sample else []
    return [
        title,
        *_part("prompt", _text(sample, "input"), PROMPT),
        *_part("response", _text(sample, "output"), RESPONSE),
        *truth,
    ]


def _part(heading: str, text: str, most: int) -> list[Text]:
    shown = Text(f"{heading:9}", style="bold dim")
    shown.append(text[:most], style="not bold not dim")
    if len(text) > most:
        shown.append(f"… ({len(text) - most:,} more characters: --json shows them)", style="not bold dim")
    return [shown]


def _text(sample: Mapping[str, Any], field: str) -> str:
    """Return a text of a sample; what a terminal would obey (colours, cursor moves) stands as a mark."""
    text = sample.get(field)
    if text is None:
        return "(text not kept)"
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text) or "(empty)"
