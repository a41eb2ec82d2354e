"""Nodes, their agents and what came of them: the search on a real server, the table, the sentences."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from elasticsearch import Elasticsearch
from rich.console import Console

from tests.command import Outcome
from tests.documents import START, Document, line, record
from tests.test_canary import AGENT
from verl_ingest.cluster import arrivals, status, targets
from verl_ingest.cluster.arrivals import Arrivals
from verl_ingest.cluster.target import Node
from verl_ingest.context.words import DASH
from verl_ingest.settings import Settings
from verl_ingest.show import status as show

OWN_DAY_S = 50_000_000  # after START: no other test's runs are the newest then
NOW = START / 1000 + OWN_DAY_S + 1_000


def of(client: Elasticsearch, *hosts: str) -> list[Arrivals]:
    return [came for came in arrivals.read(client, now=NOW) if came.host in hosts]


def metric(host: str, rank: int, step: int) -> Document:
    return record(
        "status-ppo", OWN_DAY_S + 100 + step, host=host, rank=rank, step=step, stage="actor", metrics={"kl": 0.1}
    )


def test_what_came_of_each_host(templated: Elasticsearch, write: Callable[[Iterable[Document]], None]) -> None:
    write(
        [
            line("status-ppo", OWN_DAY_S + 900, "hello", host="status-a", flags=["zone_assumed"]),
            line("status-ppo", OWN_DAY_S + 100, "hello", host="status-a"),
            line("status-ppo", OWN_DAY_S - 90_000, "the day before", host="status-a"),
            line("status-ppo", OWN_DAY_S + 400, "hello", host="status-b"),
        ]
    )
    assert of(templated, "status-a", "status-b") == [
        Arrivals("status-a", records=2, flagged=1, age_s=100, missing={}),
        Arrivals("status-b", records=1, flagged=0, age_s=600, missing={}),
    ]


def test_what_names_no_host_has_a_row_of_its_own(
    templated: Elasticsearch, write: Callable[[Iterable[Document]], None]
) -> None:
    before = {came.host: came.records for came in of(templated, "not named")}
    write([line("status-console", OWN_DAY_S + 500, "hello", host=None)])
    (came,) = of(templated, "not named")
    assert came.records == before.get("not named", 0) + 1
    assert status.rows([Node("status-gpu", AGENT)], [came])[1].node == "not named"


def test_ranks_are_missing_that_are_more_than_one_step_behind(
    templated: Elasticsearch, write: Callable[[Iterable[Document]], None]
) -> None:
    write(
        [metric("status-c", 0, step) for step in range(5)]
        + [metric("status-c", 1, step) for step in range(4)]  # one step behind: it may be about to write
        + [metric("status-d", 2, step) for step in range(3)]
    )
    assert [came.missing for came in of(templated, "status-c", "status-d")] == [{}, {"status-ppo": [2]}]


def test_a_run_of_a_wrong_year_does_not_hide_those_of_today(
    templated: Elasticsearch, write: Callable[[Iterable[Document]], None]
) -> None:
    ahead_s = OWN_DAY_S + 400 * 86_400
    strangers = [
        record(f"status-later-{run}", ahead_s, host="status-h", rank=0, step=1, metrics={"kl": 0.1}) for run in range(4)
    ]
    write([*strangers, metric("status-g", 0, 9), metric("status-g", 1, 3)])
    assert [(came.host, came.missing) for came in of(templated, "status-g", "status-h")] == [
        ("status-g", {"status-ppo": [1]})
    ]


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

    def test_hosts_of_one_name_in_two_domains_stay_apart(self) -> None:
        one, other = replace(FINE, host="gpu-1.one.org"), replace(FINE, host="gpu-1.other.org")
        rows = status.rows([Node("gpu-1.other.org", AGENT)], [one, other])
        assert [(row.node, row.arrivals) for row in rows] == [("gpu-1.other.org", other), ("gpu-1.one.org", one)]

    def test_a_host_without_an_agent_has_a_row_too(self) -> None:
        rows = status.rows([Node("gpu-2", AGENT)], [FINE])
        assert [(row.node, row.is_node, row.agent, row.arrivals) for row in rows] == [
            ("gpu-2", True, AGENT, None),
            ("gpu-1", False, None, FINE),
        ]

    def test_an_agent_of_which_nothing_is_accepted_is_not_fine(self) -> None:
        refused = replace(AGENT, delivered=0, retries=13, chunks=1)
        (row,) = status.rows([Node("gpu-1", refused)], [FINE])
        assert row.problems == [
            "Elasticsearch refuses what the agent on gpu-1 sends, or can't be reached from there (nothing delivered, "
            "sent again 13 times); the log of that service, pod or container says why: after a 401 or 403 renew the "
            "agents' secret and run `verl-ingest deploy`, else see `verl-ingest doctor`."
        ]

    def test_an_agent_that_is_refused_after_it_delivered_is_not_fine(self) -> None:
        (row,) = status.rows([Node("gpu-1", replace(AGENT, retries=13, chunks=1, untaken_s=70))], [FINE])
        (problem,) = row.problems
        assert problem.startswith("Elasticsearch refuses what the agent on gpu-1 sends, or can't be reached from there")
        assert "(nothing delivered for 70 s, sent again 13 times)" in problem

    @pytest.mark.parametrize(
        "fine", [{"retries": 0}, {"delivered": 1}, {"chunks": 0}, {"delivered": 1, "untaken_s": 4}]
    )
    def test_what_may_be_under_way_is_not_called_refused(self, fine: dict[str, int]) -> None:
        agent = replace(AGENT, **{"delivered": 0, "retries": 13, "chunks": 1, **fine})
        (row,) = status.rows([Node("gpu-1", agent)], [FINE])
        assert row.problems == []

    def test_what_is_wrong(self) -> None:
        dropped = replace(AGENT, dropped=7)
        behind = Arrivals("gpu-2", records=1, flagged=0, age_s=4, missing={"ppo": [3, 4]})
        silent = Node("gpu-3", None, "No agent answers; start it.")
        rows = status.rows([Node("gpu-1", dropped), Node("gpu-2", AGENT), silent], [FINE, behind])
        assert [problem for row in rows for problem in row.problems] == [
            "gpu-1: the agent dropped 7 records since its start; `verl-ingest audit --repair` there ships what the log "
            "files still have.",
            f"gpu-2: ranks 3{DASH}4 of ppo are behind the others; `verl-ingest why ppo` says since when.",
            "gpu-3: No agent answers; start it.",
        ]


def test_versions_that_do_something_wrong_are_told_with_their_nodes() -> None:
    versions = {"gpu-1": "5.1.1", "gpu-2": "5.1.4", "gpu-3": "5.1.1"}
    rows = status.rows([Node(name, replace(AGENT, version=version)) for name, version in versions.items()], [])
    careful = Settings(agent={"fluent_bit_513": True})
    (old,) = status.traps([row for row in rows if row.node != "gpu-2"], Settings())
    assert old.startswith("gpu-1 and gpu-3: Fluent Bit 5.1.1 forgets a refused document without a word")
    assert old.endswith("To mend: update Fluent Bit to 5.1.3 or later, then set agent.fluent_bit_513: true.")
    assert status.traps([row for row in rows if row.node == "gpu-2"], careful) == []
    console = Console(width=200, record=True)
    console.print(show.render(rows, traps=[old]))
    assert console.export_text().splitlines()[-2:] == ["Fine: 3 nodes, every agent answers.", old]


def test_the_table_is_a_line_a_node_within_100_columns() -> None:
    console = Console(width=100, record=True)
    rows = status.rows([Node("gpu-1", AGENT), Node("gpu-2", None, "gone")], [FINE])
    console.print(show.render(rows))
    heading, first, second, problem = console.export_text().splitlines()
    assert heading.split()[:2] == ["node", "agent"]
    assert first.split() == ["gpu-1", "5.1.4", "60", "s", "9", "0", "nothing", "4.0", "s", "ago", "2,000", "3", "0"]
    assert second.split() == ["gpu-2", "none", *DASH * 8]
    assert problem == "gpu-2: gone"


class Cluster:
    """A cluster of one node, whose agent answers."""

    def nodes(self, folder: Path) -> list[Node]:
        return [Node("gpu-1", AGENT)]


class TestWithoutElasticsearch:
    @pytest.fixture(autouse=True)
    def away(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:9")
        monkeypatch.setattr(targets, "of", lambda _: Cluster())
        monkeypatch.setattr(targets, "build", lambda _: tmp_path)

    def test_the_agents_are_shown_all_the_same(self, command: Callable[..., Outcome]) -> None:
        done = command("status")
        _, row, *problem = done.out.splitlines()
        assert row.split() == ["gpu-1", "5.1.4", "60", "s", "9", "0", "nothing", *DASH * 4]
        assert " ".join(" ".join(problem).split()).startswith(
            "Elasticsearch at http://127.0.0.1:9 can't be reached (Connection refused); start it, "
            "or set ELASTICSEARCH_URL."
        )
        assert (done.code, done.err) == (1, "")

    def test_json_has_them_and_the_error_stands_beside(self, command: Callable[..., Outcome]) -> None:
        done = command("status", "--json")
        (row,) = orjson.loads(done.out)
        assert (row["node"], row["agent"]["delivered"], row["arrivals"]) == ("gpu-1", 9, None)
        assert done.code == 1
        assert done.err.startswith("error: Elasticsearch at http://127.0.0.1:9 can't be reached")


def test_no_node_is_not_called_fine() -> None:
    console = Console(width=100, record=True)
    console.print(show.render([]))
    assert console.export_text().splitlines()[-1] == "No node has an agent now."
