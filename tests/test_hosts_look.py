"""look.sh, which says of a host whether the agent's user may read the logs, and whether ports are free."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from verl_ingest import assets
from verl_ingest.edge.trial import free_port

USER = "nobody"


def look(user: str, *patterns: str) -> list[str]:
    return said("logs", user, *patterns)


def said(*words: str) -> list[str]:
    command = ["sh", assets.path("templates/hosts/look.sh"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def runs() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    for run in ("open run", "closed", "private"):
        (folder / run / "logs").mkdir(parents=True)
        (folder / run / "logs" / "rank0.jsonl").touch()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("runuser") is None, reason="only root can look as another user, by runuser"
)
def test_what_another_user_may_not_read_is_named(runs: Path) -> None:
    patterns = f"{runs}/*/logs/*rank*.jsonl*", f"{runs}/*/val/[0-9]*.jsonl"
    assert look(USER, *patterns) == ["readable 3"]
    (runs / "closed").chmod(0o700)
    (runs / "private" / "logs" / "rank0.jsonl").chmod(0o600)
    assert look(USER, *patterns) == [
        f"closed {runs}/closed",
        f"closed {runs}/private/logs/rank0.jsonl",
        "readable 1",
    ]
    (runs / "open run" / "logs").chmod(0o711)  # to enter, not to list: the agent finds nothing there
    assert f"closed {runs}/open run/logs" in look(USER, *patterns)


def test_a_user_to_be_made_is_told(runs: Path) -> None:
    assert look("verl-ingest-nobody", f"{runs}/*/logs/*") == ["user none"]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_another_program_has_is_told(family: int, address: str, tmp_path: Path) -> None:
    with socket.create_server((address, 0), family=family) as server:
        taken = str(server.getsockname()[1])
        words = "host", USER, "fluent-bit", f"{tmp_path}/etc", f"{tmp_path}/state"
        assert [line for line in said(*words, taken, "1", "none") if "taken" in line] == ["taken metrics_port"]
        assert [line for line in said(*words, "1", taken, "none") if "taken" in line] == ["taken forward_port"]


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here: it is asked, not the log")
def test_a_start_that_failed_is_told_at_once(tmp_path: Path) -> None:
    def comes_up(port: int, log_bytes: int) -> bool:
        command = ["sh", assets.path("templates/hosts/look.sh"), "up", tmp_path, str(port), str(log_bytes)]
        return subprocess.run(command, timeout=20).returncode == 0  # it waits for 30 s where nothing is said

    before, log = "[supervisor] child exited with status 255, scheduling restart\n", tmp_path / "agent.log"
    log.write_text(before * 2)
    assert not comes_up(free_port(), len(before))
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert comes_up(server.getsockname()[1], len(before))
