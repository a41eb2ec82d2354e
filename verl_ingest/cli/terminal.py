"""What commands print to: a terminal, or a pipe, which gets lines that are whole and end with what they say."""

import shlex
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import orjson
import typer
from rich.console import Console, RenderableType
from rich.status import Status

from verl_ingest.checks.check import Check

WIDEST = 100
ENDLESS = 100_000

# The file of --settings as the user wrote it, None without.
SETTINGS_FILE: ContextVar[Path | None] = ContextVar("SETTINGS_FILE", default=None)


def as_called(sentence: str) -> str:
    """Give --settings, where this call has it, to the kit's commands in a sentence, so that a copied one reads it."""
    file = SETTINGS_FILE.get()
    if file is None:
        return sentence
    return sentence.replace("`verl-ingest ", f"`verl-ingest --settings {shlex.quote(str(file))} ")


def checks_as_called(checks: Iterable[Check]) -> list[Check]:
    """Return checks whose sentences name commands as this call would have them."""
    return [replace(check, found=as_called(check.found), remedy=as_called(check.remedy)) for check in checks]


def console() -> Console:
    """Return a console of the terminal's width, at most 100 columns; a pipe gets 100."""
    found = Console(highlight=False)
    return Console(highlight=False, width=min(found.width, WIDEST) if found.is_terminal else WIDEST)


def show(renderable: RenderableType) -> None:
    """Print to the terminal, which wraps a path that is too long itself; to a pipe without wrapping or end spaces."""
    target = console()
    if target.is_terminal:
        target.print(renderable, crop=False)
        return
    target.width = ENDLESS
    with target.capture() as captured:
        target.print(renderable)
    for line in captured.get().rstrip("\n").split("\n"):
        print(line.rstrip())


def waiting(what: str) -> Status:
    """Return what shows that a long look is under way, for as long as its block lasts; a pipe gets nothing of it."""
    return Status(f"{what} ...", console=Console(stderr=True))


def print_json(value: object) -> None:
    """Print one JSON value and nothing else."""
    typer.echo(orjson.dumps(value))
