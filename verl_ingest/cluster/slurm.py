"""Agents in Slurm jobs, without root: a folder on the shared file system that sbatch scripts source job.sh from."""

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from verl_ingest import assets
from verl_ingest.checks.agents import judge_version
from verl_ingest.checks.check import Check
from verl_ingest.cluster import commands
from verl_ingest.cluster.mark import RUN, Mark
from verl_ingest.cluster.target import Node
from verl_ingest.edge import folder as agent_folder
from verl_ingest.errors import KitError
from verl_ingest.lag import metrics
from verl_ingest.settings import Settings

CANARY = "slurm"  # the name of the one agent that is tried; which node it gets is up to Slurm
STEP = "verl-ingest"  # as agents.sh names the agents' job step

_SCRIPTS = ("slurm/job.sh", "slurm/agents.sh", "slurm/node.sh", "slurm/example.sbatch", "agent.sh")
_CERTIFICATE = "ca.pem"
_ASK_S = 60
_JOB_S = 180  # of the job that tries an agent: start, 60 s for sending, end
_EXPORT = "--export=PATH,HOME"  # not the login of whoever deploys, which is in the environment too
_ANYWHERE = ("srun", "--nodes=1", "--ntasks=1", "--time=5", f"--immediate={_ASK_S}", "--job-name=verl-ingest-try")
_WITHIN = ("--overlap", "--ntasks-per-node=1", "--cpus-per-task=1", "--gres=none", "--mem=0", "--mpi=none", "--label")


class Slurm:
    """The agents of `deploy.slurm`: whoever sources job.sh gets them, for as long as the job lasts."""

    name = "slurm"
    hands_out_secret = True

    def __init__(self, settings: Settings) -> None:
        self.settings, self.slurm = settings, settings.deploy.slurm
        self.place = Path(self.slurm.folder or Path.home() / "verl-ingest")

    def files(self) -> Mapping[str, str]:
        """Return the agent's folder and the scripts; what differs by job are variables that they set."""
        secret = str(self._secret) if self.settings.deploy.secret_file else self.settings.agent.secret_file
        agent = self.settings.agent.model_copy(
            update={
                "state": "${VERL_INGEST_AGENT__STATE}",
                "metrics_port": "${VERL_INGEST_AGENT__METRICS_PORT}",
                "forward_port": "${VERL_INGEST_AGENT__FORWARD_PORT}",
                "metrics_listen": "127.0.0.1",  # where node.sh asks; nodes are shared
                "secret_file": secret,
            }
        )
        given = self.settings.elasticsearch_ca_certs
        certificate = self.place / "current" / _CERTIFICATE if given else None
        of_job = self.settings.model_copy(update={"agent": agent, "node": None, "elasticsearch_ca_certs": certificate})
        variables = {
            "folder": shlex.quote(str(self.place)),
            "fluent_bit": self.slurm.fluent_bit,
            "state": agent.state,
            "agents": self.slurm.agents,
        }
        scripts = {Path(name).name: assets.template(f"{name}.j2").render(variables) for name in _SCRIPTS}
        authority = {_CERTIFICATE: agent_folder.certificate(given)} if given else {}
        return agent_folder.files(of_job, run="${VERL_INGEST_RUN}") | scripts | authority

    def check(self, folder: Path) -> Sequence[Check]:
        """Ask Slurm for its partitions, and one node for Fluent Bit's version."""
        return [*self._partitions(), *self._writable(), *self._fluent_bit()]

    def plan(self, folder: Path) -> Sequence[str]:
        """Compare what jobs find now."""
        current = self.place / "current"
        files = _files(folder)
        changed = [name for name in files if _read(current / name) != files[name]]
        gone = sorted(path.name for path in current.glob("*") if path.name not in files)
        new = [f"write {self.place}: job.sh for sbatch scripts, and what it needs"]
        return [
            *([f"change {current / name}" for name in (*changed, *gone)] if self._start.exists() else new),
            *([f"write {self._secret}, for you alone to read"] if self._secret_is_stale() else []),
        ]

    def roll_out(self, folder: Path) -> Sequence[str]:
        """Write the files as a version of their own, and let job.sh lead to it; running jobs keep theirs."""
        done = list(self.plan(folder))
        files = _files(folder)
        version = self.place / "versions" / _digest(files)
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            if self._secret_is_stale():
                _write(self._secret, self._wanted_secret() or b"")
            if not version.exists():
                unfinished = version.with_name(f"{version.name}.{os.getpid()}")
                unfinished.mkdir(parents=True)
                for name, content in files.items():
                    (unfinished / name).write_bytes(content)
                unfinished.rename(version)
            _link(self.place / "current", f"versions/{version.name}")
            _link(self._start, "current/job.sh")
        except OSError as error:
            raise KitError(
                f"{error.filename}: this can't be written ({error.strerror}); set deploy.slurm.folder to one of yours."
            ) from None
        return done

    def nodes(self, folder: Path) -> Sequence[Node]:
        """Ask the agents of this user's running jobs."""
        return [node for job, nodes in self._jobs().items() for node in self._nodes_of(job, nodes)]

    def tried(self, folder: Path) -> Sequence[str]:
        """Return the one agent that a canary tries, in a job of its own: all nodes would wait in the queue for long."""
        return [CANARY]

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Let a job of its own write each mark, with an agent that delivers it before the job ends."""
        for name, mark in marks.items():
            printed = commands.run(
                [*_ANYWHERE, f"{_EXPORT},VERL_INGEST_RUN={RUN}", "bash", self._node_sh, "try", name],
                what="The job that tries an agent",
                remedy="see what Slurm says, and deploy again when a node is free",
                given=f"{mark.path}\n{mark.line}\n",
                timeout_s=_ASK_S + _JOB_S,
            )
            if told := [line for line in printed.splitlines() if line.startswith("verl-ingest: ")]:
                raise KitError(f"The job that tries an agent says: {commands.last_words(told[0])}.")

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Remove nothing: the job that has written a mark removes it."""

    def remove(self, folder: Path, *, state: bool) -> Sequence[str]:
        """Take job.sh away, and all the rest once no job runs with it; a job removes its state by itself."""
        done = [f"removed {path}" for path in self._removed([self._start])]
        if self.place.exists() and self._jobs():
            return [*done, f"kept {self.place} for the jobs that run now; undeploy again when they have ended"]
        rest = self._removed([self.place / "current", self.place / "versions", self._secret])
        return [*done, *(f"removed {path}" for path in rest)]

    def _removed(self, paths: Sequence[Path]) -> Iterator[Path]:
        """Remove files, links and folders, and yield those that were there."""
        for path in paths:
            if not os.path.lexists(path):
                continue
            try:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            except OSError as error:
                raise KitError(f"{path}: this can't be removed ({error.strerror}); do it as its owner.") from None
            yield path

    @property
    def _secret(self) -> Path:
        return self.place / "secret"

    @property
    def _start(self) -> Path:
        return self.place / "job.sh"

    @property
    def _node_sh(self) -> str:
        return str(self.place / "current" / "node.sh")

    def _wanted_secret(self) -> bytes | None:
        """Return the secret for the agents; None where they have their own. Raises KitError where it can't be read."""
        file = self.settings.deploy.secret_file
        try:
            return file.read_bytes() if file else None
        except OSError as error:
            raise KitError(f"{file}: the secret can't be read ({error.strerror}); mend deploy.secret_file.") from None

    def _secret_is_stale(self) -> bool:
        wanted = self._wanted_secret()
        return wanted is not None and _read(self._secret) != wanted

    def _partitions(self) -> Iterator[Check]:
        listed = commands.run(
            ["sinfo", "--noheader", "--format=%R %a"],
            what="Slurm's list of partitions",
            remedy="deploy from a login node, where sinfo works",
            timeout_s=_ASK_S,
        )
        up = sorted({line.split()[0] for line in listed.splitlines() if line.endswith(" up")})
        if up:
            yield Check("Slurm", "fine", f"Partitions that are up: {', '.join(up)}.")
        else:
            yield Check("Slurm", "wrong", "No partition is up.", "ask those who run the cluster")

    def _writable(self) -> Iterator[Check]:
        place = next(path for path in (self.place, *self.place.parents) if path.exists())
        if os.access(place, os.W_OK):
            yield Check("folder", "fine", f"{self.place} can be written.")
        else:
            yield Check("folder", "wrong", f"{self.place} can't be written.", "set deploy.slurm.folder to one of yours")

    def _fluent_bit(self) -> Iterator[Check]:
        said = commands.run(
            [*_ANYWHERE, _EXPORT, self.slurm.fluent_bit, "--version"],
            what=f"{self.slurm.fluent_bit} on a node",
            remedy="set deploy.slurm.fluent_bit to one that nodes see; if no node is free, try again later",
            timeout_s=2 * _ASK_S,
        )
        version = re.search(r"v(\d+\.\d+\.\d+)", said)
        if version is None:
            found = f"{self.slurm.fluent_bit} is not Fluent Bit."
            yield Check("Fluent Bit", "wrong", found, "set deploy.slurm.fluent_bit to it")
        else:
            yield judge_version(version[1], self.settings)

    def _jobs(self) -> Mapping[str, str]:
        """Return this user's jobs with agents: id -> nodes, as Slurm writes them (gpu[1-4])."""
        steps = commands.run(
            ["squeue", "--me", "--steps", "--noheader", "--format=%i %N %j"],
            what="Slurm's list of running jobs",
            remedy="ask from a login node, where squeue works",
            timeout_s=_ASK_S,
        )
        fields = (line.split(maxsplit=2) for line in steps.splitlines())
        return {found[0].partition(".")[0]: found[1] for found in fields if len(found) == 3 and found[2] == STEP}

    def _nodes_of(self, job: str, nodes: str) -> list[Node]:
        """Ask each node of a job."""
        answer = commands.run(
            ["srun", f"--jobid={job}", f"--nodelist={nodes}", *_WITHIN, _EXPORT, "bash", self._node_sh, "status"],
            what=f"Asking the agents of job {job}",
            remedy="see squeue; it may have ended",
            timeout_s=_ASK_S,
        )
        tasks: dict[str, list[str]] = {}
        for line in answer.splitlines():
            task, _, text = line.partition(": ")
            tasks.setdefault(task.strip(), []).append(text)
        return [_node(job, tasks[task]) for task in sorted(tasks, key=int)]


def _node(job: str, lines: Sequence[str]) -> Node:
    """Return what a task of `node.sh status` has said: `node NAME answers` and its metrics, or `node NAME silent`."""
    name = next(line.split()[1] for line in lines if line.startswith("node "))
    text = "\n".join(lines)
    if metrics.is_fluent_bits(text):
        return Node(name, metrics.parse(text))
    return Node(
        name, None, f"No agent answers on {name} in job {job}; see what the job's standard error says of verl-ingest."
    )


def _files(folder: Path) -> dict[str, bytes]:
    """Return name -> content of what was rendered."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _digest(files: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in files.items():
        whole.update(name.encode() + b"\0" + content + b"\0")
    return whole.hexdigest()[:12]


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, as a whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    unfinished.replace(path)


def _link(path: Path, target: str) -> None:
    """Let a link lead to a target; it leads to the former one until then."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.symlink_to(target)
    unfinished.replace(path)
