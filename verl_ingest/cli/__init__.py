"""The command line: settings in, one sentence out where something is wrong."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from verl_ingest import __version__, settings
from verl_ingest.cli import (
    agent,
    ask,
    assets,
    audit,
    deadletters,
    deploy,
    doctor,
    explore,
    key,
    lag,
    link,
    load,
    retention,
    serve,
    summarize,
    terminal,
)
from verl_ingest.errors import KitError

app = typer.Typer(
    name="verl-ingest",
    help="Bring the logs of verl runs into Elasticsearch and ask what happened at step N.",
    epilog="The flow: apply once, load a run's logs (or let Fluent Bit send them), then ask: runs, why, step, logs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks show the values of variables, passwords among them
)
# In the order of the flow, which is that of the help; add_typer would put a module's commands at its end.
app.command("apply")(assets.apply_assets)
app.command("key")(key.make_key)
app.command("deploy")(deploy.deploy_agents)
app.command("status")(deploy.show_status)
app.command("undeploy")(deploy.undeploy_agents)
app.command("load")(load.load_files)
app.command("summarize")(summarize.summarize_run)
app.command("audit")(audit.audit_files)
app.command("lag")(lag.show_lag)
app.command("dead-letters")(deadletters.dead_letters)
app.command("retention")(retention.delete_old)
app.command("pin")(retention.pin_run)
app.command("unpin")(retention.unpin_run)
app.command("pins")(retention.list_pins)
app.command("doctor")(doctor.doctor)
app.registered_commands += ask.app.registered_commands
app.registered_commands += explore.app.registered_commands
app.command("link")(link.show_links)
app.command("serve")(serve.serve_pages)
app.command("render")(assets.render_files)
app.command("check")(agent.check_agent)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            metavar="FILE",
            help="Settings to use instead of settings.yml in this folder.",
            readable=False,  # who reads it says what is wrong, as for all files
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    terminal.SETTINGS_FILE.set(file)
    context.obj = settings.load(file)


def main() -> None:
    """Run the command line; a KitError becomes a sentence on stderr and exit code 1."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KitError as error:
        print(f"error: {terminal.as_called(str(error))}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # `| head` has seen enough; what is still buffered must not be tried again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
