"""Each node with its agent and what came of it: two answers joined, and what is wrong in sentences."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from verl_ingest.checks import agents
from verl_ingest.cluster.arrivals import Arrivals
from verl_ingest.cluster.target import Node, refusal
from verl_ingest.context import words
from verl_ingest.lag.facts import Agent
from verl_ingest.settings import Settings


@dataclass(frozen=True)
class Row:
    """A node, or a host that is none; `agent` None: none answers, `arrivals` None: nothing came in the last day."""

    node: str
    is_node: bool
    agent: Agent | None
    arrivals: Arrivals | None
    problems: Sequence[str]


def rows(nodes: Sequence[Node], came: Sequence[Arrivals]) -> list[Row]:
    """Return a row for each node, then for each host that records came of and that is none of the nodes.

    Records name a host as it names itself, an inventory perhaps with its domain: up to the first dot they are the same,
    unless several hosts are.
    """
    by_host = {arrivals.host: arrivals for arrivals in came}
    joined = [(node, by_host.pop(_host_of(node, by_host), None)) for node in nodes]
    return [
        *(Row(node.name, True, node.agent, arrivals, list(_problems(node, arrivals))) for node, arrivals in joined),
        *(Row(arrivals.host, False, None, arrivals, list(_missing(arrivals))) for arrivals in by_host.values()),
    ]


def traps(rows: Sequence[Row], settings: Settings) -> list[str]:
    """Return a sentence on each version of Fluent Bit on the nodes that does something wrong, with its nodes."""
    by_version: dict[str, list[str]] = {}
    for row in rows:
        if row.agent:
            by_version.setdefault(row.agent.version, []).append(row.node)
    judged = {version: agents.judge_version(version, settings) for version in by_version}
    return [
        f"{words.several(by_version[version])}: Fluent Bit {check.found} To mend: {check.remedy}."
        for version, check in judged.items()
        if check.verdict != "fine"
    ]


def _host_of(node: Node, hosts: Collection[str]) -> str:
    alike = [host for host in hosts if host.partition(".")[0] == node.name.partition(".")[0]]
    return alike[0] if len(alike) == 1 else node.name


def _problems(node: Node, arrivals: Arrivals | None) -> Iterator[str]:
    if node.agent is None:
        yield f"{node.name}: {node.problem}"
    elif why := refusal(node):
        yield why
    if node.agent and node.agent.dropped:
        yield (
            f"{node.name}: the agent dropped {words.counted(node.agent.dropped, 'record')} since its start; "
            "`verl-ingest audit --repair` there ships what the log files still have."
        )
    if arrivals:
        yield from _missing(arrivals)


def _missing(arrivals: Arrivals) -> Iterator[str]:
    for run, ranks in arrivals.missing.items():
        verb = "is" if len(ranks) == 1 else "are"
        yield (
            f"{arrivals.host}: {words.ranks(ranks)} of {run} {verb} behind the others; "
            f"`verl-ingest why {run}` says since when."
        )
