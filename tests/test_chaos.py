"""A short chaos suite (`make chaos` is the long one), and that its judge is strict."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from chaos import report, run, scenarios
from chaos import server as chaos_server
from chaos.scene import Scenario, Scene
from chaos.server import Server
from tests.conftest import ES_URL, ES_VERSION

LINES = 2_000
PACE_S = 0.2
WHOLE = {scenario.name: scenario for scenario in scenarios.ALL}
SHORT = [
    Scenario("kills", "the server killed once", scenarios.few_kills, lines=2 * LINES, writers=8),
    replace(WHOLE["busy-items"], lines=LINES, refused_items=0.05),
    replace(WHOLE["rename"], lines=LINES),
    replace(WHOLE["half-lines"], lines=LINES),
]

needs_own_server = pytest.mark.skipif(ES_URL is not None, reason="the server is killed: unset ELASTICSEARCH_URL")


@pytest.fixture(scope="module")
def server(fluent_bit: str) -> Iterator[Server]:  # without Fluent Bit none is started
    with chaos_server.running(ES_VERSION) as running:
        yield running


@pytest.mark.server
@needs_own_server
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_nothing_is_twice(scenario: Scenario, server: Server, fluent_bit: str, tmp_path: Path) -> None:
    found = run.play(replace(scenario, pace_s=PACE_S), server, fluent_bit, tmp_path, seed=1)
    assert found.failures == ()
    assert found.lines >= scenario.lines * 0.9
    assert (found.left, found.twice, found.gone) == (0, 0, 0)
    assert found.done


@pytest.mark.server
@needs_own_server
def test_the_judge_sees_what_is_wrong(server: Server, fluent_bit: str, tmp_path: Path) -> None:
    def tamper(scene: Scene) -> None:
        scene.start_agent()
        scene.write(200)
        scene.settle()
        client = scene.server.client
        client.indices.refresh(index="verl-*")
        query = {"term": {"run_id": scene.run_id}}
        lost, copied, changed = client.search(index="verl-*", query=query, size=3)["hits"]["hits"]
        client.delete(index=lost["_index"], id=lost["_id"])
        client.index(index="verl-2026.02.01", id=copied["_id"], document=copied["_source"])
        client.index(index=changed["_index"], id=changed["_id"], document={**changed["_source"], "value": -1})
        client.index(index=changed["_index"], id="other", document={**changed["_source"], "step": 10**6})

    found = run.play(Scenario("tampered", "", tamper, 200, pace_s=PACE_S), server, fluent_bit, tmp_path, seed=1)
    assert (found.missing, found.named, found.left, found.no_lines) == (1, 1, 0, 1)
    assert found.failures == (
        "lines are stored twice",
        "documents differ from their lines",
        "lines that are in a file did not arrive",
        "documents hold pieces of lines",
    )


def test_the_results_of_every_scenario_are_on_the_page() -> None:
    results = report.PAGE.read_text().partition(report.BEGIN)[2].partition(report.END)[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in results.splitlines() if line.startswith("|")]
    assert rows[2:] == [scenario.what for scenario in scenarios.ALL]
