"""The command for what agents gave up sending: dead-letters."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer

from verl_ingest.audit.store import ElasticStore
from verl_ingest.cli import reading, terminal
from verl_ingest.deadletters import letters, replay
from verl_ingest.deadletters.letters import Letter
from verl_ingest.edge import fluentbit
from verl_ingest.errors import StoreError
from verl_ingest.index import client
from verl_ingest.index.apply import require
from verl_ingest.lag.offsets import state_folder
from verl_ingest.load.shipper import Shipper
from verl_ingest.settings import Settings
from verl_ingest.show import deadletters as show


def dead_letters(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH", help="Rejected files, or their folders; default: the agent's folder.", readable=False
        ),
    ] = None,
    send: Annotated[
        bool, typer.Option("--replay", help="Send the records that are missing, with the ids they had.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove files all of whose records are in the index; others stay.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known as JSON and nothing else.")] = False,
) -> None:
    """Show what an agent gave up sending: Fluent Bit's files of rejected chunks, and whether the index has them by now.

    Run it on the agent's node. Exit code 1 if a file is damaged or Elasticsearch refuses a record.
    """
    settings: Settings = context.obj
    places = paths or _rejected(settings)
    found, failure = letters.find(places), None
    progress = partial(reading.progress, hidden=as_json)
    try:
        if found:
            _ask(found, settings, send=send, progress=progress)
    except StoreError as error:
        if send or remove:
            raise
        found, failure = letters.find(places), error  # what the files hold can be shown all the same
        replay.read(found, None, progress=progress)
    for letter in found:
        if remove and letter.is_settled:
            letters.remove(letter)
    if as_json:
        files = [letter.as_json() for letter in found]
        typer.echo(orjson.dumps({"files": files}, option=orjson.OPT_INDENT_2).decode())
    elif found:
        terminal.show(show.render(found))
    else:
        looked_in = paths or [fluentbit.rejected_folder(settings)]
        typer.echo(f"No dead letters in {', '.join(map(str, looked_in))}.")
    if failure:
        raise failure
    _refuse_incomplete(found)


def _rejected(settings: Settings) -> list[Path]:
    """Return the agent's folder of rejected files, if it made one; raises InputError where the agent has no folder."""
    state_folder(settings)
    folder = fluentbit.rejected_folder(settings)
    return [folder] if folder.exists() else []


def _ask(found: Sequence[Letter], settings: Settings, *, send: bool, progress: replay.Progress) -> None:
    with client.explained(settings), client.connect(settings) as server:
        if send:
            require(server)
        shippers = partial(Shipper, server, notice=reading.notice) if send else None
        replay.read(found, ElasticStore(server), open_shipper=shippers, progress=progress)


def _refuse_incomplete(found: Sequence[Letter]) -> None:
    refused = sum((letter.refused for letter in found), Counter[str]())
    unreadable = [letter.error for letter in found if letter.error]
    reading.refuse_incomplete(refused, unreadable, again="dead-letters --replay")
