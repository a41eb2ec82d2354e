"""Clusters that run sbatch scripts: programs that stand in for Slurm's, and a real Slurm of two nodes on loopback."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.stand_ins import slurm
from tests.waiting import wait_for
from verl_ingest.edge.trial import free_port

NODES = 2
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
MISSING = "no Slurm: install slurmctld, slurmd, slurm-client and munge (Debian), and run this as root"
START_S, END_S = 60, 180


class Job(Protocol):
    """A batch script that runs, and the file that is its standard error."""

    output: Path

    def ends(self) -> int:
        """Wait until it has ended and return its exit code."""
        ...


@dataclass
class StandInJob:
    process: subprocess.Popen[bytes]
    output: Path

    def ends(self) -> int:
        return self.process.wait(END_S)

    def terminate(self) -> None:
        """Send TERM to the script alone, as `--signal=B:TERM` does."""
        self.process.send_signal(signal.SIGTERM)


@dataclass
class StandIn:
    """No Slurm: scripts are run as they would be on the first node of two."""

    folder: Path
    ids: Iterator[int] = field(default_factory=lambda: iter(range(os.getpid() * 100, os.getpid() * 100 + 100)))
    jobs: list[StandInJob] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.folder}:{os.environ['PATH']}", "STAND_IN_SLURM": str(self.folder)}

    def submit(self, script: str, *, name: str, **variables: str) -> StandInJob:
        """Run a script; `variables` are those of its environment."""
        job = str(next(self.ids))
        given = {
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NAME": name,
            "SLURM_JOB_NUM_NODES": str(NODES),
            "SLURM_NNODES": str(NODES),
            "SLURM_MEM_PER_CPU": "100",
            "SLURMD_NODENAME": "node1",
        }
        file, output = self.folder / f"{job}.sbatch", self.folder / f"{job}.err"
        file.write_text(script, encoding="utf-8")
        with output.open("wb") as errors:
            process = subprocess.Popen(
                ["bash", str(file)],
                env=os.environ | self.environment | given | variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        self.jobs.append(StandInJob(process, output))
        return self.jobs[-1]


@dataclass
class Real:
    """A real Slurm."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def submit(self, script: str, *, name: str) -> Job:
        """Submit a script."""
        file, output = self.folder / f"{name}.sbatch", self.folder / f"{name}.err"
        file.write_text(script, encoding="utf-8")
        options = [f"--nodes={NODES}", "--ntasks-per-node=2", "--mem-per-cpu=100", "--time=5", f"--job-name={name}"]
        job = self.ask("sbatch", "--parsable", *options, "--output=/dev/null", f"--error={output}", str(file))
        return RealJob(self, job.strip(), output)

    def ask(self, *command: str) -> str:
        """Return what a command of Slurm's prints."""
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


@dataclass
class RealJob:
    cluster: Real
    number: str
    output: Path

    def ends(self) -> int:
        return int(wait_for(self._code, timeout=END_S, what=f"end of job {self.number} ({self.cluster.folder})"))

    def _code(self) -> str | None:
        """Return its exit code, None where it has not ended."""
        shown = self.cluster.ask("scontrol", "show", "job", self.number)
        ended = re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT)", shown)
        return re.search(r"ExitCode=(\d+):", shown)[1] if ended else None  # type: ignore[index]


@contextmanager
def stand_in(folder: Path) -> Iterator[StandIn]:
    slurm.install(folder)
    found = StandIn(folder)
    try:
        yield found
    finally:  # a test that failed may have left a job, which ends its agents
        for job in found.jobs:
            if job.process.poll() is None:
                job.terminate()
                job.ends()
    for script in folder.glob("*.sbatch"):  # what agents have left of their jobs
        shutil.rmtree(f"/tmp/verl-ingest-{os.getuid()}/{script.stem}", ignore_errors=True)


def can_be_real() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, DAEMONS))


@contextmanager
def real(folder: Path) -> Iterator[Real]:
    """Run Slurm's daemons while the block lasts: a controller and two nodes on this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(folder, munge), encoding="utf-8")
    found = Real(folder)
    with ExitStack() as running:
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}", "--num-threads=2"]
        munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        running.enter_context(_daemon(munged, folder, {}))
        wait_for(munge.exists, timeout=START_S, what="socket of munged")
        running.enter_context(_daemon(["slurmctld", "-D", "-c"], folder, found.environment))
        for number in range(1, NODES + 1):
            running.enter_context(_daemon(["slurmd", "-D", "-N", f"node{number}"], folder, found.environment))
        wait_for(lambda: _idle(found) == NODES, timeout=START_S, what=f"idle nodes (logs in {folder})")
        try:
            yield found
        finally:  # a test that failed may have left a job
            found.ask("scancel", "--me")
            wait_for(lambda: not found.ask("squeue", "--noheader"), timeout=END_S, what="end of all jobs")


def _idle(cluster: Real) -> int:
    try:
        return cluster.ask("sinfo", "--noheader", "--Node", "--format=%t").split().count("idle")
    except subprocess.CalledProcessError:  # the controller does not answer yet
        return 0


@contextmanager
def _daemon(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / "daemons.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _configuration(folder: Path, munge: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    first = free_port()
    return f"""
ClusterName=kit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
KillWait=5
FirstJobId={100_000 + os.getpid()}
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=4 RealMemory=2000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 RealMemory=2000
PartitionName=debug Nodes=ALL Default=YES MaxTime=10 DefMemPerCPU=100 State=UP
"""
