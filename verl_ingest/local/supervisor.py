"""The process that owns one Elasticsearch: lays out its folder, starts it, ends it, removes the folder.

elasticsearch.py runs it as `python -m verl_ingest.local.supervisor`: standard input brings a `Plan` as JSON, the one
line on standard output says where the server answers or what went wrong.
"""

import fcntl
import http.client
import json
import os
import pwd
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from verl_ingest.errors import KitError

POLL_SECONDS = 0.1
GONE_SECONDS = 10
LOG_LINES = 12


@dataclass(frozen=True)
class Plan:
    """What to run, and until when: until the process `parent` is gone, or else until SIGTERM."""

    version: str
    distribution: str  # folder
    config: dict[str, str]  # text by file name
    java_home: str
    heap_mb: int
    ready_seconds: float
    authority: str | None = None  # PEM of who signed the certificate of a server that speaks HTTPS
    parent: int | None = None
    state: str | None = None  # this file is locked, and says where the server is, as long as it runs


def main() -> None:
    """Run the server of the plan on standard input until there is a reason to stop."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    plan = Plan(**json.load(sys.stdin))
    try:
        with _state(plan.state) as state, home_of(plan) as home, _process(plan, home) as process:
            address = wait_until_ready(plan, home, process)
            scheme = "https" if plan.authority else "http"
            server = {"url": f"{scheme}://{address}", "version": plan.version, "folder": str(home.parent)}
            line = json.dumps({**server, "supervisor": os.getpid()})
            state.write(line)
            state.flush()
            print(line, flush=True)
            if plan.state:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # frees the terminal
            while process.poll() is None and _wanted(plan):
                time.sleep(POLL_SECONDS)
    except KitError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    except OSError as error:
        failure = f"Elasticsearch {plan.version} could not be set up: {error}; is there room in the temp folder?"
        print(json.dumps({"error": failure}), flush=True)


def _leave(*_: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a second one must not break off the cleaning up
    sys.exit()


def _wanted(plan: Plan) -> bool:
    """Tell whether the process that the server is for still lives; an orphan gets another parent."""
    return plan.parent is None or os.getppid() == plan.parent


@contextmanager
def _state(path: str | None) -> Iterator[IO[str]]:
    """Hold the state file's lock: the lock, not the pid in the file, says that the server is there."""
    with open(path or os.devnull, "a") as state:
        if path:
            try:
                fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise KitError("Another Elasticsearch is just being started; try again in a moment.") from None
            state.truncate(0)
        yield state


@contextmanager
def home_of(plan: Plan) -> Iterator[Path]:
    """Make a private copy of the distribution with its settings; remove it with all data at the end."""
    folder = Path(tempfile.mkdtemp(prefix="verl-ingest-elasticsearch-"))
    try:
        home = folder / "elasticsearch"
        shutil.copytree(plan.distribution, home)
        (home / "tmp").mkdir()
        for name, text in plan.config.items():
            (home / "config" / name).write_text(text)
        if os.geteuid() == 0:
            _hand_over(folder)
        yield home
    finally:
        shutil.rmtree(folder)


def _hand_over(folder: Path) -> None:
    """Give the folder to the unprivileged user, who must be able to reach it."""
    for parent in folder.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise KitError(
                f"Elasticsearch refuses to run as root and so runs as nobody here, who can't enter {parent}; "
                "set TMPDIR to a folder that every user may enter."
            )
    account = _unprivileged()
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, account["user"], account["group"])


def _unprivileged() -> dict[str, Any]:
    """Return the arguments that drop root, which Elasticsearch refuses to run as; empty for any other user."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def _process(plan: Plan, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the server while the block lasts, and kill it at the end: no data is to be kept."""
    process = launch(plan, home)
    try:
        yield process
    finally:
        end_group(process, signal.SIGKILL, GONE_SECONDS)


def launch(plan: Plan, home: Path) -> subprocess.Popen[bytes]:
    """Start the server in a process group of its own."""
    # Both JVMs would leave files in the system's temp folder when they are killed.
    no_traces = f"-XX:-UsePerfData -Djava.io.tmpdir={home / 'tmp'}"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ES_JAVA_HOME": plan.java_home,
        "ES_TMPDIR": str(home / "tmp"),
        "ES_JAVA_OPTS": f"-Xms{plan.heap_mb}m -Xmx{plan.heap_mb}m {no_traces}",
        "CLI_JAVA_OPTS": no_traces,
    }
    with _console(home).open("ab") as console:
        return subprocess.Popen(
            ["bash", "bin/elasticsearch"],  # Python's unzip loses the execute bit
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_unprivileged(),
        )


def wait_until_ready(plan: Plan, home: Path, process: subprocess.Popen[bytes]) -> str:
    """Return host:port as soon as the server answers there."""
    ports = home / "logs" / "http.ports"
    deadline = time.monotonic() + plan.ready_seconds
    while time.monotonic() < deadline:
        if not _wanted(plan):
            sys.exit()
        if process.poll() is not None:
            raise KitError(f"Elasticsearch {plan.version} did not start; its log ends:\n{_log_tail(home)}")
        if ports.exists() and _answers(address := ports.read_text().split()[0], plan.authority):
            return address
        time.sleep(POLL_SECONDS)
    raise KitError(
        f"Elasticsearch {plan.version} was not ready after {plan.ready_seconds:g} s; is the machine busy or short of "
        f"memory? Its log ends:\n{_log_tail(home)}"
    )


def _answers(address: str, authority: str | None) -> bool:
    """Tell whether indices can be made; a secured server that asks who we are (401) can't say more."""
    if authority:
        trusted = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection(address, timeout=5, context=trusted)
    else:
        connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=1s")
        return connection.getresponse().status in (200, 401)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _console(home: Path) -> Path:
    return home / "logs" / "console.log"


def _log_tail(home: Path) -> str:
    """Return the last lines of the log that are no stack frames."""
    lines = _console(home).read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if line.strip() and not line.startswith("\tat ")][-LOG_LINES:])


def end_group(process: subprocess.Popen[bytes], number: signal.Signals, seconds: float) -> None:
    """Signal the launcher and the server, and wait until both are gone and write no more."""
    deadline = time.monotonic() + seconds
    try:
        os.killpg(process.pid, number)
        process.wait()
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(POLL_SECONDS)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main()
