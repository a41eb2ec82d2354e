"""Nodes, their agents and what came of them: the search on a real server, the table, the sentences."""

from collections.abc import Callable, Iterable

from elasticsearch import Elasticsearch
from rich.console import Console

from tests.documents import START, Document, line, record
from tests.test_canary import AGENT
from verl_ingest.cluster import arrivals, status
from verl_ingest.cluster.arrivals import Arrivals
from verl_ingest.cluster.target import Node
from verl_ingest.context.words import DASH
from verl_ingest.show import status as show

NOW = START / 1000 + 1_000


def of(client: Elasticsearch, *hosts: str) -> list[Arrivals]:
    return [came for came in arrivals.read(client, now=NOW) if came.host in hosts]


def metric(host: str, rank: int, step: int) -> Document:
    return record("status-ppo", 100 + step, host=host, rank=rank, step=step, stage="actor", metrics={"kl": 0.1})


def test_what_came_of_each_host(templated: Elasticsearch, write: Callable[[Iterable[Document]], None]) -> None:
    write(
        [
            line("status-ppo", 900, "hello", host="status-a", flags=["zone_assumed"]),
            line("status-ppo", 100, "hello", host="status-a"),
            line("status-ppo", -90_000, "the day before", host="status-a"),
            line("status-ppo", 400, "hello", host="status-b"),
        ]
    )
    assert of(templated, "status-a", "status-b") == [
        Arrivals("status-a", records=2, flagged=1, age_s=100, missing={}),
        Arrivals("status-b", records=1, flagged=0, age_s=600, missing={}),
    ]


def test_ranks_are_missing_that_are_more_than_one_step_behind(
    templated: Elasticsearch, write: Callable[[Iterable[Document]], None]
) -> None:
    write(
        [metric("status-c", 0, step) for step in range(5)]
        + [metric("status-c", 1, step) for step in range(4)]  # one step behind: it may be about to write
        + [metric("status-d", 2, step) for step in range(3)]
    )
    assert [came.missing for came in of(templated, "status-c", "status-d")] == [{}, {"status-ppo": [2]}]


def test_a_rank_that_moved_is_not_missing_where_it_was(
    templated: Elasticsearch, write: Callable[[Iterable[Document]], None]
) -> None:
    write(
        [metric("status-e", 0, step) for step in range(9)]
        + [metric("status-f", 1, step) for step in range(4)]
        + [metric("status-e", 1, step) for step in range(4, 9)]
    )
    assert [came.missing for came in of(templated, "status-e", "status-f")] == [{}, {}]


def test_no_index_at_all(elasticsearch: Elasticsearch) -> None:
    assert (
        arrivals.judge(
            elasticsearch.search(index="verl-none-*", **arrivals.body(now=NOW)).body.get("aggregations", {}), now=NOW
        )
        == []
    )


FINE = Arrivals("gpu-1", records=2_000, flagged=3, age_s=4, missing={})


class TestRows:
    def test_a_node_is_joined_with_what_came_of_its_host_whatever_the_domain(self) -> None:
        (row,) = status.rows([Node("gpu-1.example.org", AGENT)], [FINE])
        assert (row.arrivals, row.problems) == (FINE, [])

    def test_a_host_without_an_agent_has_a_row_too(self) -> None:
        rows = status.rows([Node("gpu-2", AGENT)], [FINE])
        assert [(row.node, row.is_node, row.agent, row.arrivals) for row in rows] == [
            ("gpu-2", True, AGENT, None),
            ("gpu-1", False, None, FINE),
        ]

    def test_what_is_wrong(self) -> None:
        dropped = AGENT.__class__(**{**AGENT.__dict__, "dropped": 7})
        behind = Arrivals("gpu-2", records=1, flagged=0, age_s=4, missing={"ppo": [3, 4]})
        silent = Node("gpu-3", None, "No agent answers; start it.")
        rows = status.rows([Node("gpu-1", dropped), Node("gpu-2", AGENT), silent], [FINE, behind])
        assert [problem for row in rows for problem in row.problems] == [
            "gpu-1: the agent dropped 7 records since its start; `verl-ingest audit --repair` there ships what the log "
            "files still have.",
            f"gpu-2: ranks 3{DASH}4 of ppo are behind the others; `verl-ingest why ppo` says since when.",
            "gpu-3: No agent answers; start it.",
        ]


def test_the_table_is_a_line_a_node_within_100_columns() -> None:
    console = Console(width=100, record=True)
    rows = status.rows([Node("gpu-1", AGENT), Node("gpu-2", None, "gone")], [FINE])
    console.print(show.render(rows))
    heading, first, second, problem = console.export_text().splitlines()
    assert heading.split()[:2] == ["node", "agent"]
    assert first.split() == ["gpu-1", "5.1.4", "60", "s", "9", "0", "nothing", "4.0", "s", "ago", "2,000", "3", "0"]
    assert second.split() == ["gpu-2", "none", *DASH * 8]
    assert problem == "gpu-2: gone"


def test_no_node_is_not_called_fine() -> None:
    console = Console(width=100, record=True)
    console.print(show.render([]))
    assert console.export_text().splitlines()[-1] == "No node has an agent now."
