"""Run Elasticsearch on this machine: for a block of code (`running`), or until told to stop (`start`, `stop`).

Every server belongs to a supervisor, a small process of its own (supervisor.py) that ends the server and removes its
folder as soon as it is told to, or the process it works for is gone, even by `kill -9`.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs

from verl_ingest.errors import KitError
from verl_ingest.local import config, distribution, jdk
from verl_ingest.local.config import Tls, User
from verl_ingest.local.supervisor import Plan

__all__ = ["Server", "Tls", "User", "running", "start", "status", "stop"]

READY_SECONDS = 300  # an idle machine needs 10; a server that ends before is told at once
STOP_SECONDS = 30


@dataclass(frozen=True)
class Server:
    """A server that answers."""

    url: str
    version: str
    folder: str
    supervisor: int  # process id


@contextmanager
def running(
    version: str = distribution.DEFAULT_VERSION,
    *,
    users: Sequence[User] = (),
    roles: Mapping[str, Any] | None = None,
    tls: Tls | None = None,
    port: int = 0,
    heap_mb: int = 512,
    ready_seconds: float = READY_SECONDS,
) -> Iterator[Server]:
    """Run a server on 127.0.0.1 while the block lasts; security is on when there are `users`.

    It speaks HTTPS with `tls`. `roles` are role bodies by name; port 0 takes a free one. Raises KitError when there is
    no Maven, JDK or network, when the port is taken, and when the server does not answer within `ready_seconds`.
    """
    plan = plan_for(
        version, users=users, roles=roles or {}, tls=tls, port=port, heap_mb=heap_mb, ready_seconds=ready_seconds
    )
    supervisor = _supervise(replace(plan, parent=os.getpid()))
    try:
        yield _await_server(supervisor)
    finally:
        supervisor.terminate()
        supervisor.wait(STOP_SECONDS)


def start(version: str = distribution.DEFAULT_VERSION, *, port: int = 0, heap_mb: int = 512) -> Server:
    """Start a server that goes on until `stop`, or return the one that already does.

    Raises KitError as `running` does, and when the one that runs is of another version.
    """
    server = status()
    if server is None:
        plan = plan_for(version, users=(), roles={}, port=port, heap_mb=heap_mb, ready_seconds=READY_SECONDS)
        return _await_server(_supervise(replace(plan, state=str(_state_file()))))
    if server.version != version:
        raise KitError(f"Elasticsearch {server.version} already runs at {server.url}; stop it before {version} starts.")
    return server


def stop() -> Server | None:
    """Stop the server that `start` left running and return what it was; None when there is none."""
    server = status()
    if server is None:
        return None
    os.kill(server.supervisor, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while status() is not None:
        if time.monotonic() > deadline:
            raise KitError(f"Elasticsearch (process {server.supervisor}) did not stop within {STOP_SECONDS} s.")
        time.sleep(0.1)
    return server


def status() -> Server | None:
    """Return the server that `start` left running, None when there is none."""
    path = _state_file()
    if not path.exists():
        return None
    with path.open() as state:
        try:
            fcntl.flock(state, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # its supervisor holds the lock: it lives, and the process id in the file is its own
            if text := state.read():
                return Server(**json.loads(text))
            raise KitError("Elasticsearch is just being started; ask again in a moment.") from None
    return None


def plan_for(
    version: str,
    *,
    users: Sequence[User],
    roles: Mapping[str, Any],
    tls: Tls | None = None,
    port: int,
    heap_mb: int,
    ready_seconds: float,
) -> Plan:
    """Return what a supervisor is told to run. Raises KitError without Maven, JDK or network, or on a taken port."""
    java_home = jdk.newest(jdk.installed())
    _check_port(port)
    return Plan(
        version=version,
        distribution=str(distribution.fetch(version)),
        config=config.files(port=port, users=users, roles=roles, tls=tls),
        authority=tls.authority if tls else None,
        java_home=str(java_home),
        heap_mb=heap_mb,
        ready_seconds=ready_seconds,
    )


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise KitError(
                f"Elasticsearch can't use port {port} ({error.strerror}); choose another, or none for a free one."
            ) from None


def _supervise(plan: Plan) -> subprocess.Popen[str]:
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "verl_ingest.local.supervisor"],
        cwd=Path(__file__).parents[2],  # where the package is found, installed or not
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C in the terminal is for the caller, who then ends the supervisor
    )
    with supervisor.stdin as stdin:
        json.dump(asdict(plan), stdin)
    return supervisor


def _await_server(supervisor: subprocess.Popen[str]) -> Server:
    try:
        answer = json.loads(supervisor.stdout.readline() or '{"error": "The supervisor of Elasticsearch was killed."}')
    except BaseException:
        supervisor.terminate()
        raise
    if "error" in answer:
        raise KitError(answer["error"])
    return Server(**answer)


def _state_file() -> Path:
    return platformdirs.user_state_path("verl-ingest", ensure_exists=True) / "elasticsearch.json"
