"""Commands that look around in a run: why, series, compare, samples."""

import csv
import sys
from typing import Annotated

import typer

from verl_ingest.catalog import metrics
from verl_ingest.cli import terminal
from verl_ingest.cli.ask import Json, Run, now_ms, open_store
from verl_ingest.context import baseline, compare, curves, names, samples, search, why
from verl_ingest.errors import InputError
from verl_ingest.query.store import SAMPLE_ORDERS
from verl_ingest.show import compare as show_compare
from verl_ingest.show import curves as show_curves
from verl_ingest.show import samples as show_samples
from verl_ingest.show import why as show_why

SAMPLES = 5

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


@app.command("series")
def show_series(
    context: typer.Context,
    run_name: Run,
    metric_names: Annotated[
        list[str], typer.Argument(metavar="METRIC...", help="As printed in the logs, or of the metric catalogue.")
    ],
    by: Annotated[str | None, typer.Option(metavar="rank", help="One curve a rank, for one metric.")] = None,
    steps: Annotated[str | None, typer.Option(help="Only these steps: 120..130; else the last 2,000.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    as_json: Json = False,
) -> None:
    """Plot metrics over the steps.

    Each step counts once, as the newest attempt logged it. Of many ranks the eight that lie farthest from the others
    are plotted.
    """
    if by not in (None, "rank"):
        raise InputError(f"--by {by}: only rank is known; write --by rank.")
    if by is not None and len(metric_names) > 1:
        raise InputError("--by rank shows one metric; name just one.")
    window = None if steps is None else search.parse_steps(steps)
    with open_store(context) as store, names.open_run(store, run_name) as run:
        found = curves.read(run, metric_names, steps=window, by_rank=by is not None, catalogue=metrics.load())
        run_id = run.run_id
    if as_json:
        terminal.print_json(curves.entry(run_id, found))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(curves.table(found))
    else:
        shown = found if by is None else curves.farthest(found)
        title = run_id if by is None else f"{run_id} \u00b7 {found[0].metric}"
        width = terminal.console().width
        terminal.show(show_curves.render(title, shown, width=width, more=len(found) - len(shown)))


@app.command("compare")
def compare_runs(
    context: typer.Context,
    first_name: Annotated[str, typer.Argument(metavar="RUN_A", help="Name of a run, or the beginning of one.")],
    second_name: Annotated[str, typer.Argument(metavar="RUN_B", help="Name of another run.")],
    metric_names: Annotated[
        list[str] | None, typer.Argument(metavar="[METRIC...]", help="More than the golden six.")
    ] = None,
    at: Annotated[int | None, typer.Option(min=0, help="Compare at this step; else at the newest both have.")] = None,
    as_json: Json = False,
) -> None:
    """Put two runs side by side.

    What their configurations differ in comes first, then the golden six and other metrics: at one step, over the last
    50 steps, and where they are farthest apart. Differences are the second run less the first.
    """
    with (
        open_store(context) as store,
        names.open_run(store, first_name) as first,
        names.open_run(store, second_name) as second,
    ):
        found = compare.compare(first, second, metric_names or [], at=at, catalogue=metrics.load())
    if as_json:
        terminal.print_json(found.entry())
    else:
        terminal.show(show_compare.render(found))


@app.command("samples", context_settings={"ignore_unknown_options": True})
def show_samples_of(
    context: typer.Context,
    run_name: Run,
    step_name: Annotated[
        str | None, typer.Argument(metavar="[STEP]", help="A number, last, -2 (from the end), first-bad, or a time.")
    ] = None,
    lowest: Annotated[int | None, typer.Option(min=1, help="So many with the lowest scores; 5 by default.")] = None,
    highest: Annotated[int | None, typer.Option(min=1, help="So many with the highest scores.")] = None,
    longest: Annotated[int | None, typer.Option(min=1, help="So many with the longest responses.")] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those that hold this text, in any case.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="ID", help="Follow this prompt (its prompt_id) over all steps.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line and nothing else.")] = False,
) -> None:
    """Show samples of a step, or one prompt over the steps.

    Exits with 1 when none matches.
    """
    asked = [(order, most) for order, most in zip(SAMPLE_ORDERS, (lowest, highest, longest), strict=True) if most]
    if len(asked) > 1:
        raise InputError("samples: --lowest, --highest and --longest exclude each other; give one of them.")
    if (step_name is None) == (prompt is None):
        raise InputError("samples: say of what; give a step, or --prompt with the prompt_id of a sample.")
    order, most = asked[0] if asked else (SAMPLE_ORDERS[0], SAMPLES)
    with open_store(context) as store, names.open_run(store, run_name) as run:
        if prompt is not None:
            found = samples.of_prompt(run, prompt)
        else:
            window, now = baseline.WINDOW, now_ms()
            step = names.find_step(run, step_name, catalogue=metrics.load(), now=now, window=window)
            found = samples.find(run, step, order=order, most=most, text=grep)
    if as_json:
        for document in found:
            terminal.print_json({"run_id": document["run_id"], "step": document["step"], **samples.fields(document)})
    elif not found:
        typer.echo(f"No sample of step {step} of run {run.run_id} holds '{grep}'.", err=True)
    elif prompt is not None:
        terminal.show(show_samples.render_prompt(found, width=terminal.console().width))
    else:
        terminal.show(show_samples.render(found))
    if not found:
        raise typer.Exit(1)
