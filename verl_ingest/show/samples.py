"""Samples in a terminal: score and lengths, then prompt and response; one prompt over the steps as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.context import samples
from verl_ingest.context.words import counted, number
from verl_ingest.query.store import Document

PROMPT, RESPONSE = 400, 1_200  # characters of each that are shown
DOT = " \u00b7 "
GAP = 2
HEADINGS = ("step", "score", "length", "response")


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
