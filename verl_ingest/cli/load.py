"""The command that reads log files: load."""

from typing import Annotated

import orjson
import typer

from verl_ingest.cli import reading, summarize, terminal
from verl_ingest.index import client
from verl_ingest.index.apply import require, stale
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.load import files, pipeline
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.show import load as show_load


def load_files(
    context: typer.Context,
    paths: reading.Paths,
    run: reading.Run = None,
    timezone: reading.Zone = None,
    node: reading.Node = None,
    final: Annotated[
        bool, typer.Option("--final", help="The run has ended: take a last line without a newline too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON and nothing else.")] = False,
) -> None:
    """Load log files into Elasticsearch, without an agent: each line becomes one document.

    A folder is a run, named after the folder. Loading the same files again adds only what is new.
    """
    settings = reading.chosen(context.obj, zone=timezone, node=node)
    found = files.discover(paths, Normaliser(settings), run=run)
    with client.explained(settings), client.connect(settings) as server:
        require(server)
        if why := stale(server, settings):
            reading.notice(why)
        with reading.progress("loading", found.logs, hidden=as_json) as progress:
            summary = pipeline.load(found.logs, server, settings, final=final, progress=progress, notice=reading.notice)
        server.indices.refresh(index=ALL_PATTERN)
        runs = {log.run_id for log in found.logs}
        summary.summarised, summary.not_summarised = summarize.after_load(server, settings, runs, hidden=as_json)
    if as_json:
        typer.echo(orjson.dumps(summary, option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.show(show_load.render(summary, found))
    reading.refuse_incomplete(summary.refused, summary.unreadable, again="load")
