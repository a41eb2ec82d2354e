"""Commands for a cluster: deploy, status, undeploy."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import orjson
import typer

from verl_ingest.cli import assets, terminal
from verl_ingest.cluster import arrivals, canary, preflight, status, targets
from verl_ingest.cluster.target import Target
from verl_ingest.context.words import counted, duration
from verl_ingest.errors import KitError
from verl_ingest.index import client, state
from verl_ingest.index.mappings import STEPS_INDEX
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.retention import pins, store
from verl_ingest.settings import Settings
from verl_ingest.show import checks as show_checks
from verl_ingest.show import status as show


def deploy_agents(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show the plan; write nothing but what is rendered into build/.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Also replace what someone else wrote or changed under the kit's names.")
    ] = False,
) -> None:
    """Roll everything out to the cluster that the settings name, and see that a record arrives from each node.

    Checks servers, cluster and Fluent Bit; shows the plan; brings Elasticsearch, Kibana and Grafana their assets as
    `apply` does; brings the agents, as rendered into build/, to the nodes of deploy.target; writes a record on each
    node and waits until it is found. What fails ends it with a sentence; run it again when that is mended: what is done
    is not done twice.
    """
    settings: Settings = context.obj
    target = targets.of(settings)
    _heading("Checks")
    folder = targets.build(target)
    typer.echo(f"Rendered into {folder}, to be read.")
    with terminal.waiting("asking Elasticsearch and the nodes"):
        found = terminal.checks_as_called(preflight.checks(settings, target, folder, overwrite=overwrite))
    terminal.show(show_checks.table(found, names=show_checks.width(found)))
    if wrong := [check for check in found if check.verdict == "wrong"]:
        raise KitError(f"Nothing was changed, since {counted(len(wrong), 'thing')} must be mended first, named above.")
    _heading("Plan")
    assets.bring(settings, assets.Plan(dry_run=True, overwrite=overwrite, brief=True))
    with terminal.waiting("comparing what the nodes have"):
        plan = target.plan(folder)
    _tell(plan, "agents: nothing to change")
    if dry_run:
        typer.echo(f"Dry run: nothing but {targets.BUILD}/ was written.")
        return
    _heading("Assets")
    assets.bring(settings, assets.Plan(dry_run=False, overwrite=overwrite, brief=True))
    _heading("Agents")
    _tell(target.roll_out(folder) if plan else (), "nothing to change")
    _heading("A record from each node")
    typer.echo(f"\nDone: {_try(settings, target, folder)}")


def _try(settings: Settings, target: Target, folder: Path) -> str:
    """Fly the canaries, and say how long they took."""
    found: list[float] = []

    def tell(node: str, seconds: float) -> None:
        found.append(seconds)
        typer.echo(f"{node}: found {duration(seconds)} after the writing")

    took = duration(canary.fly(settings, target, folder, tell))
    last = f"the last {duration(max(found))} after the writing, which took {took}"
    return f"records of {counted(len(found), 'node')} arrive, {last}."


def show_status(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")] = False,
) -> None:
    """Show each node: its agent and what it has sent, what Elasticsearch has of it, and which ranks are missing.

    Exit code 1 where an agent or Elasticsearch does not answer, records were refused or dropped, or ranks are missing.
    """
    settings: Settings = context.obj
    target = targets.of(settings)
    nodes = target.nodes(targets.build(target))
    came, trouble = _arrivals(settings)
    rows = [
        replace(row, problems=[terminal.as_called(problem) for problem in row.problems])
        for row in status.rows(nodes, came)
    ]
    if as_json:
        typer.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.show(show.render(rows, terminal.as_called(trouble), status.traps(rows, settings)))
    if as_json and trouble:
        raise KitError(trouble)
    if trouble or any(row.problems for row in rows):
        raise typer.Exit(1)


def _arrivals(settings: Settings) -> tuple[list[arrivals.Arrivals], str]:
    """Return what came of each host; nothing where Elasticsearch does not tell, and then why."""
    try:
        with client.explained(settings), client.connect(settings) as server:
            return arrivals.read(server, now=time.time()), ""
    except KitError as error:
        return [], str(error)


def undeploy_agents(
    context: typer.Context,
    data: Annotated[
        bool,
        typer.Option(
            "--data",
            help="Also delete the data, after a question: all records, samples, summaries and pins in Elasticsearch, "
            "and the agents' folders with what still waits to be sent.",
        ),
    ] = False,
) -> None:
    """Stop the agents of the cluster that the settings name and remove them; the data stay.

    What is in Elasticsearch stays, with its templates, and so do the agents' file offsets and waiting records on the
    nodes: the next `deploy` goes on where they ended.
    """
    settings: Settings = context.obj
    target = targets.of(settings)
    if data:
        _ask_twice(settings)
    _tell(target.remove(targets.build(target), state=data), "no agent was there")
    if data:
        with client.explained(settings), client.connect(settings) as server:
            names = [index.name for index in store.indices(server)]
            for name in (*names, STEPS_INDEX, state.INDEX):
                server.indices.delete(index=name, ignore_unavailable=True)
        daily = len(names)
        what = f"{daily:,} daily {'index' if daily == 1 else 'indices'}" if daily else "no daily index was there"
        typer.echo(f"Elasticsearch: {what}, summaries and pins deleted")


def _ask_twice(settings: Settings) -> None:
    """Say what would be lost, and go on only for who types the word."""
    with client.explained(settings), client.connect(settings) as server:
        found, pinned = store.indices(server), pins.read(server)
        runs = ElasticStore(server).run_ids()
    kept = sum(pin.run_id in runs for pin in pinned)
    documents = counted(sum(index.documents or 0 for index in found), "document")
    where = f"Elasticsearch at {settings.elasticsearch_url}"
    if found:
        typer.echo(
            f"This deletes for good all records, samples, summaries and pins in {where}, whoever sent them: "
            f"{documents} of {counted(len(runs), 'run')}, {kept:,} of them pinned. What waits on the nodes goes too."
        )
    else:
        typer.echo(f"There are no records in {where}. This deletes for good what waits on the nodes.")
    typer.echo("Type `delete` to go on:")
    if sys.stdin.readline().strip() != "delete":
        raise KitError("Nothing was removed; leave --data out to remove the agents alone.")


def _tell(lines: Iterable[str], none: str) -> None:
    """Print lines as they come, or what to say where there are none."""
    said = False
    for line in lines:
        said = True
        typer.echo(terminal.as_called(line))
    if not said:
        typer.echo(none)


def _heading(text: str) -> None:
    typer.echo(f"\n{typer.style(text, bold=True)}")
