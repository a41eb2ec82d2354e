"""Commands on what is kept, and for how long: retention, pin, unpin, pins."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, TypeVar

import typer
from elasticsearch import Elasticsearch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verl_ingest.cli import terminal
from verl_ingest.cli.ask import Run, now_ms
from verl_ingest.context import names
from verl_ingest.context.words import counted
from verl_ingest.errors import InputError, StoreError
from verl_ingest.index import client, state
from verl_ingest.index.apply import require
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.times import iso
from verl_ingest.retention import due, pins, store
from verl_ingest.retention.due import Limits, Verdict
from verl_ingest.retention.pins import Pin
from verl_ingest.settings import Settings
from verl_ingest.show import retention as show
from verl_ingest.summarise import writing

T = TypeVar("T")


def delete_old(
    context: typer.Context,
    days: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Days to keep records; default: the setting retention.days.")
    ] = None,
    samples_days: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Days to keep samples; default: retention.samples_days, or as records."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, delete nothing.")] = False,
) -> None:
    """Delete the daily indices that were made more than so many days ago, but none with records of a pinned run.

    For a timer or a CronJob. What goes and what stays is shown first. Nothing but the kit's daily indices is ever
    deleted. Exit code 1 if one of them could not be looked into or deleted; the others are gone all the same.
    """
    settings: Settings = context.obj
    limits = _limits(settings, days=days, samples_days=samples_days)
    with client.explained(settings), client.connect(settings) as server:
        found = store.indices(server)
        old = due.due(found, limits, now=now_ms())
        looks = (store.judge(server, index, settings) for index in old)
        verdicts = list(_counted("looking into old indices", looks, len(old)))
        typer.echo(show.heading(limits, old=len(old), daily=len(found)))
        if verdicts:
            terminal.show(show.render(verdicts))
        if dry_run:
            typer.echo(show.would(verdicts))
        else:
            verdicts = _delete(server, settings, verdicts)
            typer.echo(show.done(verdicts, writing.remove_days(server)))
    failed = sum(verdict.word == "failed" for verdict in verdicts)
    if failed:
        what = "looked into" if dry_run else "deleted"
        raise StoreError(f"{show.plural(failed)} could not be {what}, see above; mend that, then run this again.")


def pin_run(
    context: typer.Context,
    run_name: Run,
    why: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why it is to be kept, for whoever asks later.")
    ] = None,
) -> None:
    """Keep a run: `retention` deletes no index that has records of it, whatever its age."""
    settings: Settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        require(server, state.TEMPLATE)
        run_id = names.find_run(ElasticStore(server), run_name)
        old = {pin.run_id: pin for pin in pins.read(server)}.get(run_id, Pin(run_id, iso(now_ms())))
        pins.add(server, Pin(run_id, old.since, why or old.why))
        records = store.records_of(server, [run_id], index=ALL_PATTERN)
    documents = counted(sum(runs[run_id] for runs in records.values()), "document")
    typer.echo(f"{run_id} is pinned: its {documents} in {show.plural(len(records))} will be kept.")


def unpin_run(context: typer.Context, run_name: Run) -> None:
    """Keep a run no longer: `retention` deletes its indices when they are old enough."""
    settings: Settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        known = pins.read(server)
        if run_name == names.NEWEST_RUN:
            run_name = names.find_run(ElasticStore(server), run_name)
        pin = pins.find(known, run_name)
        pins.remove(server, pin.run_id)
    typer.echo(f"{pin.run_id} is no longer pinned.")


def list_pins(context: typer.Context) -> None:
    """List the pinned runs: since when, what there is of them, why."""
    settings: Settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        found = pins.read(server)
        if not found:
            typer.echo("No run is pinned; `verl-ingest pin RUN` pins one.")
            return
        records = store.records_of(server, [pin.run_id for pin in found], index=ALL_PATTERN)
    terminal.show(show.pins(found, records))


def _limits(settings: Settings, *, days: int | None, samples_days: int | None) -> Limits:
    records = days or settings.retention.days
    limits = Limits(records, samples_days or settings.retention.samples_days or records)
    if limits == Limits(None, None):
        raise InputError(
            "Nothing says for how long to keep records, so none is deleted; give --days N, or set retention.days."
        )
    return limits


def _delete(server: Elasticsearch, settings: Settings, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Delete what is due and return how it went, in the same order; what did not go as the table says is printed."""
    old = [verdict.index for verdict in verdicts if verdict.word == "due"]
    done: dict[str, Verdict] = {}
    try:
        with client.explained(settings):
            for verdict in _counted("deleting", (store.delete(server, index, settings) for index in old), len(old)):
                done[verdict.index.name] = verdict
    except StoreError as error:
        gone = sum(verdict.word == "deleted" for verdict in done.values())
        raise StoreError(f"{error} {gone:,} of {show.plural(len(old))} had been deleted; run this again.") from error
    for verdict in done.values():
        if verdict.word != "deleted":
            typer.echo(f"{verdict.index.name}: {show.said(verdict)}")
    return [done.get(verdict.index.name, verdict) for verdict in verdicts]


def _counted(what: str, items: Iterable[T], total: int) -> Iterator[T]:
    """Yield the items, and show on stderr, where that is a terminal, how many are done."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not (total and console.is_terminal)) as bar:
        yield from bar.track(items, total=total, description=what)
