"""What the commands that read log files share: their options, the progress bar, what ends them with an error."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol
from zoneinfo import available_timezones

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
from verl_ingest.settings import Settings

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Folders of runs, or log files (also rotated, also .gz).", readable=False),
]
Run = Annotated[str | None, typer.Option(help="Name of the run, instead of the folder's.")]
Zone = Annotated[
    str | None, typer.Option(help="Zone of times without one, such as Asia/Shanghai; default: the setting.")
]
Node = Annotated[
    str | None, typer.Option(help="Node whose own files these are, where other nodes have files of the same paths.")
]


class Sized(Protocol):
    """A file that is read, with its size in bytes."""

    @property
    def size(self) -> int: ...


def chosen(settings: Settings, *, zone: str | None, node: str | None) -> Settings:
    """Return the settings with another time zone and node, where they are given.

    Raises InputError where there is no such zone.
    """
    if zone is not None and zone not in available_timezones():
        raise InputError(f"--timezone {zone}: no zone of that name; give one such as Asia/Shanghai or Etc/UTC.")
    changes = ({"timezone": zone} if zone else {}) | ({"node": node, "node_scope": ("all",)} if node else {})
    return settings.model_copy(update=changes)


@contextmanager
def progress(what: str, files: Sequence[Sized], *, hidden: bool) -> Iterator[Callable[[int], Any]]:
    """Show bytes, speed and time left on stderr, where that is a terminal; yields what is told the bytes read."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task(what, total=sum(file.size for file in files))
        yield lambda read: bar.advance(task, read)


def notice(sentence: str) -> None:
    """Say on stderr what goes on meanwhile; a progress bar that is shown stays below it."""
    typer.echo(sentence, err=True)


def refuse_incomplete(refused: Mapping[str, int], unreadable: Sequence[str], *, again: str) -> None:
    """Raise what kept a line from becoming a document: refusals by reason, sentences about files; else do nothing."""
    if refused:
        reason, count = next(iter(refused.items()))
        raise StoreError(
            f"Elasticsearch refused {sum(refused.values())} documents ({count} for {reason}); "
            f"run `verl-ingest apply`, then {again} again."
        )
    if unreadable:
        more = f" ({len(unreadable) - 1} more such files)" if len(unreadable) > 1 else ""
        raise InputError(f"{unreadable[0]}{more}")
