"""The command that shows runs and steps as pages: serve."""

import socket
from typing import Annotated

import typer

from verl_ingest.errors import KitError
from verl_ingest.index import client
from verl_ingest.links import page
from verl_ingest.query.elastic import ElasticStore

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve_pages(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback are open to the network.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = 9110,
) -> None:
    """Show runs and steps as pages, until interrupted.

    Only reads: give it a user of the role verl_reader. Who may read the pages is set under service in settings.yml.
    """
    import uvicorn  # these take half a second, which no other command should wait for

    from verl_ingest.serve import app, security

    settings = context.obj
    open_to_all = settings.service.password is None and settings.service.user_header is None
    hosts = security.local_names(settings, host) if host in LOOPBACK and open_to_all else None
    with _listen(host, port) as listener, client.connect(settings) as server:
        service = app.create(settings, ElasticStore(server), hosts=hosts)
        where = f"[{host}]" if ":" in host else host
        typer.echo(f"Pages at http://{where}:{listener.getsockname()[1]}{page.runs()}; Ctrl-C stops.")
        if open_to_all and host not in LOOPBACK:
            typer.echo(f"Whoever reaches {host} can read all logs; set service.username and password.", err=True)
        uvicorn.Server(app.config(service)).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        raise KitError(f"{host} port {port} can't be listened on ({why}); choose another --port.") from None
