"""The command that prints where a step is shown: link."""

import time
from typing import Annotated

import typer

from verl_ingest.catalog import metrics
from verl_ingest.cli import terminal
from verl_ingest.cli.ask import Json
from verl_ingest.context import baseline, names
from verl_ingest.errors import NotFound, StoreError
from verl_ingest.index import client
from verl_ingest.links import step as step_links
from verl_ingest.links.step import Span
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.store import MOST_RANK
from verl_ingest.settings import ENV_PREFIX, Settings


def show_links(
    context: typer.Context,
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="Whole name of a run, or @last.")],
    step_name: Annotated[
        str, typer.Argument(metavar="STEP", help="A number; of an indexed run also last, first-bad, a time.")
    ],
    rank: Annotated[int | None, typer.Option(min=0, max=MOST_RANK, help="Point at this rank.")] = None,
    as_json: Json = False,
) -> None:
    """Print the addresses of a step: its page, Kibana, Grafana.

    Works for runs that are not indexed yet, too.
    """
    settings = context.obj
    run_id, step, span, why_not = _find(settings, run_name, step_name)
    links = step_links.for_step(settings, run_id, step, span, rank=rank)
    if as_json:
        terminal.print_json(links)
    else:
        for name, address in links.items():
            typer.echo(f"{name:8} {address or _missing(step_links.SETTING[name])}")
    if span is None and (links["kibana"] or links["grafana"]):
        since, until = step_links.RECENT
        typer.echo(f"{why_not} Kibana and Grafana look at {since} to {until}.", err=True)


def _find(settings: Settings, run_name: str, step_name: str) -> tuple[str, int, Span | None, str]:
    """Return the run, the step, its times, and why those are not known, should they be None."""
    try:
        with client.explained(settings), client.connect(settings) as server:
            store = ElasticStore(server)
            run_id = names.find_run(store, run_name) if run_name == names.NEWEST_RUN else run_name
            with store.open(run_id) as run:
                now = round(time.time() * 1_000)
                step = names.find_step(run, step_name, catalogue=metrics.load(), now=now, window=baseline.WINDOW)
                return run_id, step, run.span(step), f"Run '{run_id}' has no step {step} yet."
    except (NotFound, StoreError) as error:
        if run_name == names.NEWEST_RUN or not step_name.isdecimal():
            raise
        return run_name, names.step_number(step_name), None, str(error)


def _missing(setting: str) -> str:
    return f"none; set {setting} in settings.yml or {ENV_PREFIX}{setting.upper()}"
