"""Run a playbook on the hosts of an inventory, and hear of each task on each host while it goes on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_ingest.cluster.commands import last_words
from verl_ingest.context.words import counted
from verl_ingest.errors import KitError

_COMMAND = "ansible-playbook"
_FORKS = 25
# What goes before the reason: time, level and plugin in a line of Fluent Bit's, words of Ansible's own.
_HEAD = re.compile(r"^(\[[^]]*\] *)+|^Task failed: |.*\bssh: ")
# What Ansible says where sudo asks for a password, and it has none or another.
_NO_PASSWORD = re.compile(r"(missing|incorrect) \w+ password", re.IGNORECASE)
# What a shell, or a shim that stands for several versions, says of a Python that is not there.
_NO_PYTHON = re.compile(r"python[\d.]*: .*(not found|no such file)", re.IGNORECASE)


@dataclass(frozen=True)
class Event:
    """How a task went on a host; `said` is its message or what it printed."""

    host: str
    task: str
    state: Literal["ok", "changed", "failed", "unreachable"]
    said: str

    @property
    def failure(self) -> str:
        """A sentence on a host that failed."""
        return f"{self.host}{' ' if self.state == 'unreachable' else ': '}{self.why}"

    @property
    def why(self) -> str:
        """What to say of a host that failed, after its name."""
        if self.state == "unreachable":
            return f"can't be reached ({_gist(self.said, otherwise=-1)}); try `ssh {self.host}`, or mend the inventory."
        if self.said.endswith("."):  # the playbook's own sentence
            return self.said
        gist = _gist(self.said, otherwise=0)
        if _NO_PYTHON.search(gist):
            return (
                f"the Python that Ansible found there does not run ({gist}); set "
                "ansible_python_interpreter=/usr/bin/python3 for it in the inventory."
            )
        if _NO_PASSWORD.search(gist):
            return (
                f"Ansible may not become root there ({gist}); set ANSIBLE_BECOME_PASSWORD_FILE to a file with the "
                "password, or put ansible_become_password into a vault."
            )
        return f"{self.task} failed ({gist}); mend that there, and run this again."


def play(playbook: Path, inventory: Path, *, options: Sequence[str] = ()) -> Iterator[Event]:
    """Yield what happens, as it happens.

    Ansible itself, its configuration and its ssh are the user's. Raises KitError where Ansible is missing or can't
    begin; a host that fails is an event.
    """
    command = [_program(), "--inventory", str(inventory), "--forks", str(_FORKS), *options, str(playbook)]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "events", "ANSIBLE_NOCOLOR": "1"}
    with tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        hosts = 0
        try:
            for line in process.stdout or ():
                if line.startswith("{"):
                    hosts += 1
                    yield _event(line)
        finally:
            process.terminate()
            code = process.wait()
        if not hosts:
            complaints.seek(0)
            why = _no_host(complaints.read(), code)
            raise KitError(f"{inventory.absolute()}: Ansible can't begin ({why}); mend deploy.hosts.inventory.")


def finished(events: Iterator[Event]) -> Iterator[Event]:
    """Yield the events but for failures; at the end raise KitError with the first host's, where there are any.

    Of several failures of a host its last is told: what a playbook says of the others.
    """
    failed: dict[str, Event] = {}
    for event in events:
        if event.state in ("failed", "unreachable"):
            failed[event.host] = event
        else:
            yield event
    if failed:
        others = f" {counted(len(failed) - 1, 'other host')} failed too." if len(failed) > 1 else ""
        raise KitError(next(iter(failed.values())).failure + others)


def _program() -> str:
    """Return Ansible's path: beside this Python, else on the PATH."""
    beside = Path(sys.executable).with_name(_COMMAND)
    found = str(beside) if beside.exists() else shutil.which(_COMMAND)
    if found is None:
        raise KitError(f"Hosts are reached by {_COMMAND}, which is not on the PATH; pip install ansible-core.")
    return found


def _event(line: str) -> Event:
    told = json.loads(line)
    printed = told["stderr"] or told["stdout"] if told["state"] == "failed" else told["stdout"]
    own = told["msg"] if told["msg"] != "non-zero return code" else ""
    return Event(told["host"], told["task"], told["state"], printed or own or "")


def _no_host(complaints: str, code: int) -> str:
    """Return why no task ran on any host; what it can't read Ansible takes for empty, with a warning."""
    if unread := re.search(r"Failed to parse inventory.*", complaints):
        return last_words(unread[0])
    return last_words(complaints) if code else "no host is in it"


def _gist(said: str, *, otherwise: int) -> str:
    """Return why, without what goes before it; `otherwise` as in last_words."""
    return _HEAD.sub("", last_words(said, otherwise=otherwise)).partition(". ")[0]
