"""Commands that look at a whole run: why."""

import typer

from verl_ingest.catalog import metrics
from verl_ingest.cli import terminal
from verl_ingest.cli.ask import Json, Run, now_ms, open_store
from verl_ingest.context import names, why
from verl_ingest.show import why as show_why

app = typer.Typer()


@app.command("why")
def tell_why(context: typer.Context, run_name: Run, as_json: Json = False) -> None:
    """Tell why a run is as it is.

    When it began and with what, what followed, how the run ended, what to do first, and the last healthy checkpoint
    with what to type to resume from it. Looks at the last 500 steps, further back while they are all one episode.
    """
    with open_store(context) as store, names.open_run(store, run_name) as run:
        found = why.explain(run, catalogue=metrics.load(), now=now_ms())
    if as_json:
        terminal.print_json(found.entry())
    else:
        terminal.show(show_why.render(found))
