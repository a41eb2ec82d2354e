"""The command that says whether the pipeline is well: doctor."""

from dataclasses import replace
from typing import Annotated

import orjson
import typer

from verl_ingest.checks.examine import Examined, examine
from verl_ingest.cli import terminal
from verl_ingest.show import doctor as show


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print all checks as JSON and nothing else.")] = False,
) -> None:
    """Say whether the pipeline is well: server, templates, agent, records of the last day, Kibana, Grafana, service.

    Each check is fine, watch, wrong or unknown, and says what to do. Nothing is changed. It can be run anywhere; the
    agent is looked at where one runs. Exit code 1 if anything is wrong.
    """
    groups = examine(context.obj).groups
    found = Examined([replace(group, checks=terminal.checks_as_called(group.checks)) for group in groups])
    if as_json:
        typer.echo(orjson.dumps(found.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.show(show.render(found))
    if found.count("wrong"):
        raise typer.Exit(1)
