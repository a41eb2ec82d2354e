"""The nodes of a cluster as a table, and below it what is wrong."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from verl_ingest.cluster.status import Row
from verl_ingest.context.words import DASH, counted, duration

COLUMNS = ("agent", "up", "delivered", "dropped", "waits", "newest record", "last day", "flagged", "missing ranks")


def render(rows: Sequence[Row], trouble: str = "", traps: Sequence[str] = ()) -> Group:
    """Return a row a node: its agent's counters since its start, and what Elasticsearch has of it of the last day.

    `trouble` is why it is not known what Elasticsearch has, `traps` what is to be known of the agents' versions.
    """
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("node", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row.node, style="red" if row.problems else ""), *_agent(row), *_arrivals(row))
    found = [problem for row in rows for problem in row.problems] + ([trouble] if trouble else [])
    problems = [Text(problem, style="red") for problem in found]
    nodes = sum(row.is_node for row in rows)
    verdict = f"Fine: {counted(nodes, 'node')}, every agent answers." if nodes else "No node has an agent now."
    watched = [Text(trap, style="yellow") for trap in traps]
    return Group(table, *problems or [Text(verdict, style="green" if nodes else "yellow")], *watched)


def _agent(row: Row) -> list[str]:
    agent = row.agent
    if agent is None:
        return ["none" if row.is_node else DASH, *[DASH] * 4]
    waits = counted(agent.chunks, "chunk") if agent.chunks else "nothing"
    return [agent.version, duration(agent.uptime_s), f"{agent.delivered:,}", f"{agent.dropped:,}", waits]


def _arrivals(row: Row) -> list[str]:
    came = row.arrivals
    if came is None:
        return [DASH] * 4
    missing = sum(map(len, came.missing.values()))
    return [f"{duration(came.age_s)} ago", f"{came.records:,}", f"{came.flagged:,}", f"{missing:,}"]
