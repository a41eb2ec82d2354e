"""The command that makes an API key: key."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from verl_ingest.errors import KitError
from verl_ingest.index import client, keys
from verl_ingest.index.roles import BODIES
from verl_ingest.settings import Settings

RoleName = Enum("RoleName", {name: name for name in BODIES}, type=str)


def make_key(
    context: typer.Context,
    role: Annotated[RoleName, typer.Argument(metavar="ROLE", help="verl_writer, verl_reader or verl_admin.")],
    days: Annotated[int, typer.Option("--days", min=1, help="For how long.")] = 365,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="New file for the key, ROLE.key here by default; - prints it."),
    ] = None,
) -> None:
    """Make an API key that can do what a role can: verl_writer for agents, verl_reader for the service and Grafana.

    The key goes into a file that only you may read. It needs a login by user and password, since Elasticsearch lets no
    key make another; a user with the role verl_admin may make keys of all three.
    """
    settings: Settings = context.obj
    if settings.elasticsearch_api_key:
        raise KitError(
            "Elasticsearch lets no API key make another; unset ELASTICSEARCH_API_KEY, and set ELASTICSEARCH_USERNAME "
            "and ELASTICSEARCH_PASSWORD."
        )
    path, printed = out or Path(f"{role.value}.key"), out == Path("-")
    with nullcontext() if printed else _new_file(path):
        with client.explained(settings), client.connect(settings) as server:
            key = keys.make(server, role.value, days=days)
        if printed:
            typer.echo(key.encoded)
        else:
            path.write_text(key.encoded)
    what = "This is" if printed else f"{path} has"
    typer.echo(f"{what} an API key of the role {role.value}, until {key.until:%Y-%m-%d %H:%M} UTC.", err=printed)
    typer.echo(BODIES[role.value]["description"], err=printed)


@contextmanager
def _new_file(path: Path) -> Iterator[None]:
    """Make a file that nobody else may read, before there is a key to lose; remove it where the block fails."""
    try:
        path.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise KitError(f"{path}: the key can't be written there: {error.strerror}; choose another --out.") from None
    try:
        yield
    except BaseException:
        path.unlink()
        raise
