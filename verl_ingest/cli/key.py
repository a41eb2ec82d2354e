"""The command that makes an API key: key."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from elasticsearch import AuthenticationException, Elasticsearch

from verl_ingest.context.words import listed
from verl_ingest.errors import KitError
from verl_ingest.index import client, keys
from verl_ingest.index.roles import BODIES
from verl_ingest.settings import Settings


def _known(role: str) -> str:
    if role not in BODIES:
        raise typer.BadParameter(f"'{role}' is not one of {listed([*BODIES])}.")
    return role


def make_key(
    context: typer.Context,
    role: Annotated[
        str, typer.Argument(metavar="ROLE", callback=_known, help="verl_writer, verl_reader or verl_admin.")
    ],
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
    path, printed = out or Path(f"{role}.key"), out == Path("-")
    with nullcontext() if printed else _new_file(path):
        with client.explained(settings), client.connect(settings) as server:
            key = _make(server, role, days, settings)
        if printed:
            typer.echo(key.encoded)
        else:
            path.write_text(key.encoded)
    what = "This is" if printed else f"{path} has"
    typer.echo(f"{what} an API key of the role {role}, until {key.until:%Y-%m-%d %H:%M} UTC.", err=printed)
    typer.echo(BODIES[role]["description"], err=printed)


def _make(server: Elasticsearch, role: str, days: int, settings: Settings) -> keys.Key:
    """Make a key; without a login only one by password is asked for, as a key would not do."""
    try:
        return keys.make(server, role, days=days)
    except AuthenticationException:
        if settings.elasticsearch_username:
            raise
        raise KitError(
            f"Elasticsearch at {settings.elasticsearch_url} wants a login to make a key; "
            "set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD."
        ) from None


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
