"""The command that proves what became of every line: audit."""

from functools import partial
from typing import Annotated

import orjson
import typer

from verl_ingest.audit import pipeline
from verl_ingest.audit.balance import Report
from verl_ingest.audit.store import ElasticStore
from verl_ingest.cli import reading, terminal
from verl_ingest.errors import StoreError
from verl_ingest.index import client
from verl_ingest.index.apply import require
from verl_ingest.load import files
from verl_ingest.load.shipper import Shipper
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.show import audit as show_audit


def audit_files(
    context: typer.Context,
    paths: reading.Paths,
    run: reading.Run = None,
    timezone: reading.Zone = None,
    node: reading.Node = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Ship what is missing; remove what stands in a second day's index.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Ask for every document by its id, instead of counting them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON and nothing else.")] = False,
) -> None:
    """Prove that every line of log files is in Elasticsearch, whoever sent it; name those that are not.

    lines = indexed + dropped by a rule + missing + same_id + unfinished. Exit code 1 if any line is missing.
    """
    settings = reading.chosen(context.obj, zone=timezone, node=node)
    found = files.discover(paths, Normaliser(settings), run=run)
    with client.explained(settings), client.connect(settings) as server:
        if repair:
            require(server)
        report = pipeline.audit(
            found.logs,
            ElasticStore(server),
            settings,
            full=full,
            shipper=Shipper(server, notice=reading.notice) if repair else None,
            progress=partial(reading.progress, hidden=as_json),
        )
    if as_json:
        typer.echo(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2).decode())
    else:
        terminal.show(show_audit.render(report))
    reading.refuse_incomplete(report.refused, report.unreadable, again="audit with --repair")
    _refuse_missing(report)


def _refuse_missing(report: Report) -> None:
    if report.missing:
        lines = "1 line is" if report.missing == 1 else f"{report.missing:,} lines are"
        none = ", and none is there: is it the right run (--run NAME)?"
        rest = "; --repair ships them." if report.numbers()["indexed"] else none
        raise StoreError(f"{lines} missing in Elasticsearch{rest}")
