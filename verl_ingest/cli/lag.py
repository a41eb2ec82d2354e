"""The command that says how far the agent is behind: lag."""

from typing import Annotated

import orjson
import typer

from verl_ingest.cli import terminal
from verl_ingest.lag.collect import collect
from verl_ingest.lag.verdict import Limits, problems
from verl_ingest.show import lag as show


def show_lag(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option(metavar="MB", help="Megabytes, unread or waiting, that do not yet count as behind.", min=0)
    ] = Limits.bytes // 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")] = False,
) -> None:
    """Say how far this node's agent is behind: bytes unread, bytes waiting, records lost, the newest records' age.

    Run it on the agent's node, as a user who may read its folder. Exit code 1 if more than --limit is behind, anything
    for over a minute, records were dropped, or something can't be found out.
    """
    facts = collect(context.obj)
    found = problems(facts, Limits(bytes=limit * 1_000_000))
    if as_json:
        numbers = {"fine": not found, "problems": found, **facts.as_json()}
        typer.echo(orjson.dumps(numbers, option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.show(show.render(facts, found))
    if found:
        raise typer.Exit(1)
