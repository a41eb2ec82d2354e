"""What each kind of cluster answers to: Kubernetes, hosts by ssh, Slurm jobs, compose."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from verl_ingest.checks.check import Check
from verl_ingest.cluster.mark import Mark
from verl_ingest.context.words import counted, duration
from verl_ingest.errors import KitError
from verl_ingest.lag.facts import Agent


@dataclass(frozen=True)
class Node:
    """A node that has an agent, or should have: its counters, or why there are none in a sentence with a remedy.

    `name` is what the agent there has in VERL_INGEST_NODE.
    """

    name: str
    agent: Agent | None
    problem: str = ""


def answering(nodes: Sequence[Node]) -> list[str]:
    """Return the names of the nodes; raises KitError where there is none, or one whose agent does not answer."""
    silent = [node for node in nodes if node.agent is None]
    if silent:
        raise KitError(
            f"{counted(len(silent), 'agent')} of {len(nodes)} can't be asked: {silent[0].name}: {silent[0].problem}"
        )
    if not nodes:
        raise KitError("No node has an agent; mend the settings of `deploy`, which name the nodes.")
    return [node.name for node in nodes]


def refusal(node: Node) -> str | None:
    """Return the sentence on an agent of which nothing is accepted; None where that is not so."""
    if node.agent is None or not node.agent.is_refused:
        return None
    nothing = f"nothing delivered for {duration(node.agent.untaken_s)}" if node.agent.delivered else "nothing delivered"
    return (
        f"Elasticsearch refuses what the agent on {node.name} sends, or can't be reached from there "
        f"({nothing}, sent again {counted(node.agent.retries, 'time')}); the log of that service, pod or container "
        "says why: after a 401 or 403 renew the agents' secret and run `verl-ingest deploy`, else see "
        "`verl-ingest doctor`."
    )


class Target(Protocol):
    """One kind of cluster. `folder` is where `files` have been written: build/<name>.

    Every method but `files` runs commands, whose failures are KitErrors: what, where, what next.
    """

    name: str
    hands_out_secret: bool  # whether agents log in with what deploy.secret_file has

    def files(self) -> Mapping[str, str]:
        """Return what is rolled out, readable before it runs: path below the folder -> text. No secret is in it."""
        ...

    def check(self, folder: Path) -> Sequence[Check]:
        """Look whether nodes and tools are there and fit, Fluent Bit's version on the nodes too; change nothing."""
        ...

    def plan(self, folder: Path) -> Sequence[str]:
        """Return a line for each thing that `roll_out` would change; none where all is as rendered."""
        ...

    def roll_out(self, folder: Path) -> Iterable[str]:
        """Bring the agents to what the folder says, and wait until they run; give a line for each change."""
        ...

    def nodes(self, folder: Path) -> Sequence[Node]:
        """Ask every node's agent for its counters."""
        ...

    def tried(self, folder: Path) -> Sequence[str]:
        """Return the names of the nodes that are to write a record: all, where each has an agent at all times."""
        ...

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Append each node's mark (node -> mark) to the file that it names, on that node, as a training run would."""
        ...

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Remove the files of the marks again."""
        ...

    def remove(self, folder: Path, *, state: bool) -> Iterable[str]:
        """Stop and remove the agents, their folders of offsets and waiting records only with `state`."""
        ...
