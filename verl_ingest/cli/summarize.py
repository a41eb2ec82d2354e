"""The command that keeps step summaries: summarize; `load` does the same after its lines are in."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import orjson
import typer
from elasticsearch import Elasticsearch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from verl_ingest.catalog import metrics
from verl_ingest.cli import ask
from verl_ingest.context import names
from verl_ingest.errors import NotFound, StoreError
from verl_ingest.index import client
from verl_ingest.index.apply import require
from verl_ingest.index.mappings import STEPS_TEMPLATE
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings
from verl_ingest.show import summaries as show_summaries
from verl_ingest.summarise.run import bring_up_to_date, keep_up

POLL_S = 5.0


def summarize_run(
    context: typer.Context,
    run_name: ask.Run,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with steps and late records as they come.")] = (
        False
    ),
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make those that are up to date again too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per look and nothing else.")] = False,
) -> None:
    """Write the summaries of a run's steps: asking is then fast, however many ranks there are.

    Only steps with new records are read. `load` does it by itself; beside an agent, let it follow the run. Answers are
    the same without.
    """
    settings: Settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        require(server, STEPS_TEMPLATE)
        store = ElasticStore(server)
        run_id = names.find_run(store, run_name)
        with _progress(hidden=as_json) as progress:
            looks = keep_up(
                store,
                server,
                run_id,
                catalogue=metrics.load(),
                rebuild=rebuild,
                wait=lambda: time.sleep(POLL_S),
                progress=progress,
            )
            first = next(looks)
        typer.echo(orjson.dumps(first) if as_json else show_summaries.whole(first, run_id))
        for changes in looks if follow else ():
            if changes.new or changes.again or changes.removed:
                typer.echo(orjson.dumps(changes) if as_json else show_summaries.line(changes, at=time.localtime()))


def after_load(server: Elasticsearch, settings: Settings, runs: Iterable[str], *, hidden: bool) -> tuple[int, str]:
    """Bring the summaries of the loaded runs up to date; return the steps written and, where that failed, why.

    The lines are in whatever happens here, and answers are the same without summaries, so that nothing is raised.
    """
    written, store, catalogue = 0, ElasticStore(server), metrics.load()
    try:
        with client.explained(settings), _progress(hidden=hidden) as progress:
            require(server, STEPS_TEMPLATE)
            for run_id in sorted(runs):
                with suppress(NotFound), store.open(run_id) as run:  # all of its lines may have been dropped
                    changes = bring_up_to_date(run, server, catalogue=catalogue, progress=progress)
                    written += len(changes.new) + len(changes.again)
    except StoreError as error:
        return written, str(error)
    return written, ""


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Callable[[int], Any]]:
    """Show the steps done so far on stderr, where that is a terminal; yields what is told the steps."""
    console = Console(stderr=True)
    columns = TextColumn("summarising"), TextColumn("{task.completed:,.0f} steps"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda steps: bar.advance(task, steps)
