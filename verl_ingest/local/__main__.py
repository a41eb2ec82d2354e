"""`python -m verl_ingest.local start|stop|status`: an Elasticsearch that stays until it is stopped."""

import argparse
import sys

from verl_ingest.errors import KitError
from verl_ingest.local import distribution, elasticsearch


def main() -> None:
    """Run the command; print the server's address to standard output, everything else to standard error."""
    parser = argparse.ArgumentParser(prog="python -m verl_ingest.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start it, or say where it already runs")
    start.add_argument("--version", default=distribution.DEFAULT_VERSION, help="default: %(default)s")
    start.add_argument("--port", type=int, default=0, help="default: a free one")
    commands.add_parser("stop", help="stop it and remove its data")
    commands.add_parser("status", help="say where it runs; exit with 1 when it does not")
    arguments = parser.parse_args()
    try:
        if arguments.command == "start":
            server = elasticsearch.start(arguments.version, port=arguments.port)
        elif arguments.command == "stop":
            server = elasticsearch.stop()
        else:
            server = elasticsearch.status()
    except KitError as error:
        sys.exit(f"error: {error}")
    if server is None:
        print("No local Elasticsearch runs.", file=sys.stderr)
        sys.exit(arguments.command == "status")
    print(f"{server.url} is stopped." if arguments.command == "stop" else server.url)


if __name__ == "__main__":
    main()
