"""An Elasticsearch that is killed, stopped and started again, on the same port and the same data."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elasticsearch import Elasticsearch

from verl_ingest.edge.trial import free_port
from verl_ingest.index import apply
from verl_ingest.local import elasticsearch as local
from verl_ingest.local import supervisor
from verl_ingest.local.supervisor import Plan
from verl_ingest.settings import Settings

HEAP_MB = 512
READY_S = 180
GONE_S = 90


class Server:
    """One node; `client` speaks to it whenever it is up."""

    def __init__(self, plan: Plan, home: Path, url: str) -> None:
        self._plan, self._home = plan, home
        self._process: subprocess.Popen[bytes] | None = None
        self.url, self.version = url, plan.version
        self.client = Elasticsearch(url, request_timeout=120)

    def start(self) -> None:
        self._process = supervisor.launch(self._plan, self._home)
        supervisor.wait_until_ready(self._plan, self._home, self._process)

    def kill(self) -> None:
        """End it as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process:
            supervisor.end_group(self._process, number, GONE_S)
            self._process = None


@contextmanager
def running(version: str) -> Iterator[Server]:
    """Run a server that has the kit's templates; its data are removed after the block."""
    port = free_port()
    plan = local.plan_for(version, users=(), roles={}, port=port, heap_mb=HEAP_MB, ready_seconds=READY_S)
    with supervisor.home_of(plan) as home:
        server = Server(plan, home, f"http://127.0.0.1:{port}")
        try:
            server.start()
            apply.write(server.client, apply.compare(server.client, apply.wanted(Settings.model_construct())))
            yield server
        finally:
            server.kill()
            server.client.close()
