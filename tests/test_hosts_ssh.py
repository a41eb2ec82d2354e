"""Hosts over a real ssh: a server of this machine's own, for this user alone, on two addresses."""

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_deploy_hosts import Cluster, answers, cluster  # noqa: F401 (fixture)
from tests.waiting import wait_for
from verl_ingest.cluster.hosts_play import Event
from verl_ingest.edge.trial import free_port

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="no ssh server: install openssh-server and openssh-client"
)


@dataclass(frozen=True)
class Server:
    """An ssh server that lets this user in with the key `own`, and not with `other`."""

    folder: Path
    port: int

    def host(self, name: str, address: str, *, key: str = "own") -> str:
        """Return a line of an inventory, which has nothing to do with this user's own configuration of ssh."""
        known = f"-o StrictHostKeyChecking=accept-new -o UserKnownHostsFile={self.folder}/known"
        return (
            f"{name} ansible_host={address} ansible_port={self.port} ansible_user={getpass.getuser()} "
            f"ansible_become=false ansible_python_interpreter={sys.executable} "
            f"ansible_ssh_private_key_file={self.folder}/{key} "
            f"ansible_ssh_common_args='-F none -o IdentitiesOnly=yes {known}'\n"
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir()
    for key in ("host", "own", "other"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(make, check=True, timeout=30)
    options = {
        "ListenAddress": (f"127.0.0.1:{port}", f"127.0.0.2:{port}"),
        "HostKey": (folder / "host",),
        "AuthorizedKeysFile": (folder / "own.pub",),
        "PidFile": ("none",),
        "StrictModes": ("no",),  # the folders of tests are below /tmp, which is everyone's
        "UsePAM": ("no",),
        "PasswordAuthentication": ("no",),
    }
    lines = [f"{name} {value}\n" for name, values in options.items() for value in values]
    (folder / "sshd_config").write_text("".join(lines))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # which root's server wants, and the package leaves to systemd
    with (folder / "log").open("w") as log:
        command = [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log) as process:
            try:
                wait_for(lambda: answers(port), timeout=10, what="the ssh server")
                yield Server(folder, port)
            finally:
                process.terminate()


def test_an_agent_is_brought_over_ssh_and_a_host_that_refuses_is_named(cluster: Cluster, server: Server) -> None:  # noqa: F811
    lines = [server.host("one", "127.0.0.1"), server.host("two", "127.0.0.2")]
    Path("hosts.ini").write_text("".join([*lines, server.host("closed", "127.0.0.1", key="other")]))
    target, folder = cluster.built(elasticsearch_url="http://127.0.0.1:9")
    wrong, fine = [check for check in target.check(folder) if check.name == "hosts"]
    assert wrong.found.startswith("closed can't be reached (")
    assert "Permission denied (publickey" in wrong.found
    assert wrong.remedy == "try `ssh closed`, or mend the inventory"
    assert fine.found == "one and two can be reached."

    Path("hosts.ini").write_text(lines[0])
    [line] = target.roll_out(folder)
    assert line.startswith("one: state folder ")
    assert line.endswith("start of the agent")


@pytest.mark.parametrize("said", ["Task failed: Missing sudo password", "Task failed: Incorrect sudo password"])
def test_a_password_for_sudo_that_is_not_there_has_its_own_remedy(said: str) -> None:
    assert Event("gpu-1", "look", "failed", said).failure == (
        f"gpu-1: Ansible may not become root there ({said.removeprefix('Task failed: ')}); set "
        "ANSIBLE_BECOME_PASSWORD_FILE to a file with the password, or put ansible_become_password into a vault."
    )


@pytest.mark.parametrize(
    ("state", "said", "gist"),
    [
        (
            "failed",
            "Fluent Bit v5.1.1\n[2026/11/29] [error] no such plugin. Aborting\n[error] and so on",
            "no such plugin",
        ),
        ("failed", "sh: 1: flock: not found\nsh: 2: more", "sh: 1: flock: not found"),
        ("failed", 'Traceback (most recent call last):\n  File "x"\nPermissionError: no', "PermissionError: no"),
        (
            "unreachable",
            "Warning: a key was added.\nssh: connect to host a port 22: No route to host",
            "connect to host",
        ),
    ],
)
def test_of_what_is_printed_the_line_with_the_reason_is_told(state: str, said: str, gist: str) -> None:
    assert f"({gist}" in Event("gpu-1", "look", state, said).failure
