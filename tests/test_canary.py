"""A record on each node: where it is written, that it is found, what is said where it is not."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from tests.demo_store import load
from verl_ingest.cluster import canary
from verl_ingest.cluster.mark import RUN, Mark, mark
from verl_ingest.cluster.target import Node, answering
from verl_ingest.errors import KitError, SettingsError
from verl_ingest.lag.facts import Agent
from verl_ingest.settings import Paths, Settings

AGENT = Agent("5.1.4", 60, delivered=9, dropped=0, retries=0, errors=0, truncated=0, chunks=0, paused=())
NOW = 1_800_000_000_123_456_789


def paths(*rank: str) -> Paths:
    return Paths(rank=rank, file_logger=(), console=(), rollout=(), ray=())


class TestMark:
    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("/data/{run}/logs/*rank*.jsonl*", f"/data/{RUN}/logs/canary-gpu-1-{NOW}-rank.jsonl"),
            ("/data/{run}/*/rank?.jsonl", f"/data/{RUN}/canary/rank0.jsonl"),
            ("/data/{run}/val/[0-9]*.jsonl", f"/data/{RUN}/val/0canary-gpu-1-{NOW}-.jsonl"),
            ("/data/{run}/actor.log", f"/data/{RUN}/actor.log"),
        ],
    )
    def test_it_lies_where_the_logs_of_a_run_would(self, pattern: str, expected: str) -> None:
        found = mark(Settings(paths=paths(pattern)), node="gpu-1", nanoseconds=NOW)
        assert found.path == expected
        assert found.index == "verl-2027.01.15"

    def test_nodes_with_files_of_their_own_have_ids_of_their_own(self) -> None:
        settings = Settings(paths=paths("/data/{run}/actor.log"), node_scope=("all",))
        marks = [mark(settings, node=node, nanoseconds=NOW) for node in ("gpu-1", "gpu-2")]
        assert marks[0].path == marks[1].path
        assert marks[0].document_id != marks[1].document_id

    def test_paths_that_name_no_run(self) -> None:
        with pytest.raises(SettingsError, match=r"No setting of `paths` has a \{run\} in it, so .* set paths\.rank\."):
            mark(Settings(paths=paths()), node="gpu-1", nanoseconds=NOW)


class Loader:
    """A cluster whose agents are the loader: what is written on a node is loaded at once, but of the deaf ones."""

    name = "loader"

    def __init__(self, client: Elasticsearch, nodes: Sequence[Node], *, deaf: Sequence[str] = ()) -> None:
        self.client, self._nodes, self.deaf = client, nodes, deaf

    def tried(self, folder: Path) -> Sequence[str]:
        return answering(self._nodes)

    def nodes(self, folder: Path) -> Sequence[Node]:
        return self._nodes

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        for node, each in marks.items():
            Path(each.path).parent.mkdir(parents=True, exist_ok=True)
            Path(each.path).write_text(each.line + "\n")
            if node not in self.deaf:
                load(self.client, RUN, Path(each.path).parent.parent)

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        for each in marks.values():
            Path(each.path).unlink(missing_ok=True)


@pytest.fixture
def settings(elasticsearch_url: str, tmp_path: Path) -> Settings:
    return Settings(
        elasticsearch_url=elasticsearch_url,
        paths=paths(f"{tmp_path}/{{run}}/logs/*rank*.jsonl"),
        deploy={"canary_s": 2},
    )


def fly(settings: Settings, target: Loader, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    canary.fly(settings, target, folder, found.__setitem__)
    return found


def marks_left(client: Elasticsearch) -> int:
    return client.count(index="verl-*", query={"term": {"run_id": RUN}})["count"]


class TestFly:
    def test_each_node_is_told_with_its_latency_and_nothing_is_left(
        self, templated: Elasticsearch, settings: Settings, tmp_path: Path
    ) -> None:
        nodes = [Node(name, AGENT) for name in ("gpu-1", "gpu-2")]
        found = fly(settings, Loader(templated, nodes), tmp_path)
        assert found.keys() == {"gpu-1", "gpu-2"}
        assert all(0 < seconds < 30 for seconds in found.values())
        assert marks_left(templated) == 0
        assert not list(tmp_path.rglob("*.jsonl"))

    def test_the_time_that_the_writing_takes_is_told_apart(
        self, templated: Elasticsearch, settings: Settings, tmp_path: Path
    ) -> None:
        class Slow(Loader):
            def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
                time.sleep(1)  # as Ansible, srun and kubectl do before they write anything
                super().write(folder, marks)

        found: list[float] = []
        began = time.monotonic()
        took = canary.fly(settings, Slow(templated, [Node("gpu-1", AGENT)]), tmp_path, lambda _, s: found.append(s))
        assert took > 1
        assert 0 < found[0] < time.monotonic() - began - took

    def test_a_node_whose_record_does_not_arrive(
        self, templated: Elasticsearch, settings: Settings, tmp_path: Path
    ) -> None:
        nodes = [Node(name, AGENT) for name in ("gpu-1", "gpu-2")]
        expected = re.escape(
            f"The record written on gpu-2 was not found within 2 s; look at that agent's log, whether it may read "
            f"{tmp_path}/{RUN}/logs there, and at `verl-ingest status`."
        )
        with pytest.raises(KitError, match=expected):
            fly(settings, Loader(templated, nodes, deaf=["gpu-2"]), tmp_path)
        assert marks_left(templated) == 0
        assert not list(tmp_path.rglob("*.jsonl"))

    def test_an_agent_of_which_nothing_is_accepted_is_the_reason(
        self, templated: Elasticsearch, settings: Settings, tmp_path: Path
    ) -> None:
        refused = replace(AGENT, delivered=0, retries=13, chunks=1)
        nodes = [Node("gpu-1", refused), Node("gpu-2", AGENT), Node("gpu-3", refused)]
        expected = re.escape(
            "The record written on gpu-2 and gpu-3 was not found within 2 s: Elasticsearch refuses what the "
            "agent on gpu-3 sends, or can't be reached from there (nothing delivered, sent again 13 times); "
            "the log of that service, pod or container says why: after a 401 or 403 "
        )
        with pytest.raises(KitError, match=expected):
            fly(settings, Loader(templated, nodes, deaf=["gpu-2", "gpu-3"]), tmp_path)

    def test_what_came_late_of_an_earlier_try_is_removed(
        self, templated: Elasticsearch, settings: Settings, tmp_path: Path
    ) -> None:
        late = mark(settings, node="gpu-9", nanoseconds=NOW)
        Loader(templated, []).write(tmp_path, {"gpu-9": late})
        assert marks_left(templated) == 1
        fly(settings, Loader(templated, [Node("gpu-1", AGENT)]), tmp_path)
        assert marks_left(templated) == 0

    def test_an_agent_that_can_not_be_asked(self, templated: Elasticsearch, settings: Settings, tmp_path: Path) -> None:
        nodes = [Node("gpu-1", AGENT), Node("gpu-2", None, "It does not answer ssh; start it.")]
        with pytest.raises(KitError, match=r"^1 agent of 2 can't be asked: gpu-2: It does not answer ssh; start it\.$"):
            fly(settings, Loader(templated, nodes), tmp_path)

    def test_no_node(self, templated: Elasticsearch, settings: Settings, tmp_path: Path) -> None:
        with pytest.raises(KitError, match=r"No node has an agent; mend the settings of `deploy`"):
            fly(settings, Loader(templated, []), tmp_path)
