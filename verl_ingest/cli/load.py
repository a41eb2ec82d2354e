"""The command that reads log files: load."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import available_timezones

import orjson
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from verl_ingest.errors import InputError, StoreError
from verl_ingest.index import client
from verl_ingest.index.apply import require
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.load import files, pipeline
from verl_ingest.load.files import Found
from verl_ingest.load.pipeline import Summary
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings
from verl_ingest.show import load as show_load


def load_files(
    context: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Folders of runs, or log files (also rotated, also .gz).")
    ],
    run: Annotated[str | None, typer.Option(help="Name of the run, instead of the folder's.")] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Zone of times without one, such as Asia/Shanghai; default: the setting.")
    ] = None,
    final: Annotated[
        bool, typer.Option("--final", help="The run has ended: take a last line without a newline too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> None:
    """Load log files into Elasticsearch, without an agent: each line becomes one document.

    A folder is a run, named after the folder. Loading the same files again adds only what is new.
    """
    settings = _with_zone(context.obj, timezone)
    found = files.discover(paths, Normaliser(settings), run=run)
    with client.explained(settings), client.connect(settings) as server:
        require(server)
        with _progress(found, hidden=as_json) as progress:
            summary = pipeline.load(found.logs, server, settings, final=final, progress=progress)
        server.indices.refresh(index=ALL_PATTERN)
    if as_json:
        typer.echo(orjson.dumps(asdict(summary), option=orjson.OPT_INDENT_2).decode())
    else:
        Console(highlight=False).print(show_load.render(summary, found))
    _refuse_if_incomplete(summary)


def _with_zone(settings: Settings, zone: str | None) -> Settings:
    if zone is None:
        return settings
    if zone not in available_timezones():
        raise InputError(f"--timezone {zone}: no zone of that name; give one such as Asia/Shanghai or Etc/UTC.")
    return settings.model_copy(update={"timezone": zone})


def _refuse_if_incomplete(summary: Summary) -> None:
    """Raise what kept a line from becoming a document."""
    if summary.refused:
        reason, count = next(iter(summary.refused.items()))
        raise StoreError(
            f"Elasticsearch refused {sum(summary.refused.values())} documents ({count} for {reason}); "
            "run `verl-ingest apply`, then load again."
        )
    if summary.unreadable:
        more = f" ({len(summary.unreadable) - 1} more such files)" if len(summary.unreadable) > 1 else ""
        raise InputError(f"{summary.unreadable[0]}{more}")


@contextmanager
def _progress(found: Found, *, hidden: bool) -> Iterator[Callable[[int], Any]]:
    """Show bytes, speed and time left on stderr, where that is a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("loading", total=sum(log.size for log in found.logs))
        yield lambda read: progress.advance(task, read)
