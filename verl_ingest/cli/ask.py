"""Commands that ask: runs, step, share, logs."""

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Annotated

import typer
from rich.text import Text

from verl_ingest.catalog import metrics
from verl_ingest.cli import terminal
from verl_ingest.context import baseline, hosts, lines, names, narrow, runs, search, share, step
from verl_ingest.index import client
from verl_ingest.links import step as step_links
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.store import MOST_RANK, Document, Lines
from verl_ingest.query.times import milliseconds, parse_duration, parse_time
from verl_ingest.show import lines as show_lines
from verl_ingest.show import runs as show_runs
from verl_ingest.show import step as show_step

LINE = 400  # characters of a line in a terminal
POLL_S = 2.0
LATE_MS = 60_000  # lines that come in so late are followed at once,
LATEST_MS = 3_600_000  # lines that come in so late at every 30th look
POLLS_PER_LATEST = 30

app = typer.Typer()

Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run, the beginning of one, or @last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.command("runs")
def list_runs(
    context: typer.Context,
    most: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many runs.")] = 20,
    as_json: Json = False,
) -> None:
    """List runs: state, since which step abnormal, newest step, time to go, golden six; and which are pinned.

    The run that logged last comes first. A run is running, finished, crashed, stalled, ended (silent for a day), or
    unknown (its times lie in the future). It is abnormal where it has crashed, or where one of the golden six is
    far off in two of the last three steps, as step summaries have them; `why RUN` looks at everything.
    """
    catalogue = metrics.load()
    with open_store(context) as store:
        found = runs.newest(store, catalogue=catalogue, now=now_ms(), most=most + 1)
    if as_json:
        terminal.print_json([run.entry() for run in found[:most]])
    elif found:
        terminal.show(show_runs.render(found[:most], catalogue, width=terminal.console().width))
        if any(run.abnormal is None and (run.step or 0) > baseline.ENOUGH for run in found[:most]):
            typer.echo(terminal.as_called(show_runs.UNKNOWN), err=True)
    else:
        typer.echo(names.NO_RUNS)
    if len(found) > most:
        typer.echo(f"There are more runs; --limit {5 * most} shows up to so many.", err=True)


@app.command("step", context_settings={"ignore_unknown_options": True})
def show_one_step(
    context: typer.Context,
    run_name: Run,
    step_name: Annotated[
        str,
        typer.Argument(
            metavar="STEP", help="A number, last, -2 (from the end), first-bad (where its trouble began), or a time."
        ),
    ],
    stage: Annotated[str | None, typer.Option(help="Show this stage only.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, max=MOST_RANK, help="Show this rank beside the others.")] = None,
    window: Annotated[
        int, typer.Option(min=baseline.ENOUGH, help="Steps before it that say what is usual.")
    ] = baseline.WINDOW,
    as_json: Json = False,
) -> None:
    """Tell what happened at a step.

    What is abnormal comes first, judged against the steps before and against the other ranks; then metrics, stages,
    errors, log lines, samples.
    """
    catalogue, now = metrics.load(), now_ms()
    with open_store(context) as store, names.open_run(store, run_name) as run:
        number = names.find_step(run, step_name, catalogue=catalogue, now=now, window=window)
        found = step.assemble(run, number, catalogue=catalogue, now=now, window=window)
    if stage is not None:
        found = narrow.to_stage(found, stage)
    if rank is not None:
        found = narrow.to_rank(found, rank)
    found = step_links.add(found, context.obj, rank=rank)
    found = replace(found, body=found.body | {"summary": [*map(terminal.as_called, found.body["summary"])]})
    if as_json:
        terminal.print_json(found.body)
    else:
        terminal.show(show_step.render(found, catalogue, width=terminal.console().width, rank=rank))


@app.command("share")
def tell_share(
    context: typer.Context,
    condition: Annotated[str, typer.Argument(metavar="CONDITION", help="Such as 'reward < 0.1'.")],
    last: Annotated[str, typer.Option(help="Length of the window, such as 90s, 30m, 1h, 2d.")] = "1h",
    until: Annotated[
        str | None, typer.Option(help="End of the window; else now, or the run's last sample or record.")
    ] = None,
    run_name: Annotated[str | None, typer.Option("--run", help="Look at this run only.")] = None,
    as_json: Json = False,
) -> None:
    """Tell the share of samples or records that fulfil a condition.

    reward and score are the scores of samples; any other name is a metric of the records.
    """
    end, length, catalogue = None if until is None else parse_time(until), parse_duration(last), metrics.load()
    with open_store(context) as store, nullcontext() if run_name is None else names.open_run(store, run_name) as run:
        answer = share.ask(store, condition, length=length, until=end, run=run, catalogue=catalogue, now=now_ms())
    if as_json:
        terminal.print_json(answer.entry())
    else:
        terminal.show(Text(answer.sentence()))


@app.command("logs")
def show_logs(
    context: typer.Context,
    run_name: Run,
    grep: Annotated[str | None, typer.Option(metavar="TEXT", help="Lines that hold this text, in any case.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, max=MOST_RANK, help="Lines of this rank.")] = None,
    level: Annotated[str | None, typer.Option(help="Lines of this level or above: warning, error.")] = None,
    steps: Annotated[str | None, typer.Option(help="Lines of these steps: 120..130 or 128.")] = None,
    around: Annotated[
        str | None, typer.Option(help="Lines up to 5m before and after the steps; alone: the run's last 5m.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with lines as they come, up to 1 h late.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line and nothing else.")] = False,
) -> None:
    """Show log lines of a run.

    Equal ones are folded with counts. Exits with 1 when none matches.
    """
    window = None if around is None else parse_duration(around)
    steps_ = None if steps is None else search.parse_steps(steps)
    with open_store(context) as store:
        with names.open_run(store, run_name) as run:
            run_id = run.run_id
            wanted = search.wanted(run, text=grep, rank=rank, level=level, steps=steps_, around=window)
            skew = hosts.clock_skew_at(run, None if wanted.steps is None else wanted.steps[1])
            found = search.search(run, wanted, skew)
        for host, ahead in skew.items() if found or follow else ():
            typer.echo(f"clock of {host} {ahead:+.2f} s; lines are in order of true time", err=True)
        day = _print_lines(found, as_json)
        if follow:
            _follow(store, run_id, wanted, found, skew, as_json, day)
        elif not found:
            typer.echo(f"No line of run {run_id} matches.", err=True)
            raise typer.Exit(1)


def _follow(
    store: ElasticStore,
    run_id: str,
    wanted: Lines,
    found: list[Document],
    skew: Mapping[str, float],
    as_json: bool,
    day: str | None,
) -> None:
    """Print new lines until interrupted; `found` are those that were printed already, under `day` at last."""
    newest = max(map(milliseconds, found), default=now_ms())
    seen = {document["event_id"]: milliseconds(document) for document in found}
    for poll in itertools.count(1):
        time.sleep(POLL_S)
        since = newest - (LATE_MS if poll % POLLS_PER_LATEST else LATEST_MS)
        with store.open(run_id) as run:
            recent = search.search(run, replace(wanted, since=max(since, wanted.since or since), until=None), skew)
        day = _print_lines([document for document in recent if document["event_id"] not in seen], as_json, day)
        seen |= {document["event_id"]: milliseconds(document) for document in recent}
        newest = max(seen.values(), default=newest)
        seen = {name: at for name, at in seen.items() if at >= newest - LATEST_MS}


def _print_lines(documents: list[Document], as_json: bool, day: str | None = None) -> str | None:
    """Print lines, each day under its heading unless that is `day`; return the last day."""
    console = terminal.console()
    most = LINE if console.is_terminal else None
    for line in (line.entry() for line in lines.fold(documents)):
        if as_json:
            terminal.print_json(line)
            continue
        if show_lines.day(line) != day:
            day = show_lines.day(line)
            console.print(day, style="bold")
        console.print(show_lines.render(line, most=most), soft_wrap=True)
    return day


@contextmanager
def open_store(context: typer.Context) -> Iterator[ElasticStore]:
    """Open the store that the settings name; what goes wrong inside is said in one sentence."""
    settings = context.obj
    with client.explained(settings), client.connect(settings) as server:
        yield ElasticStore(server)


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return round(time.time() * 1_000)
