"""`undeploy --data`: what it asks, and what it deletes; on a real server, of which it sees the indices of this test."""

import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from tests.command import Outcome
from tests.documents import record
from verl_ingest.cli import deploy
from verl_ingest.cluster.slurm import Slurm
from verl_ingest.index import state
from verl_ingest.query import elastic
from verl_ingest.retention import pins, store
from verl_ingest.retention.pins import Pin

YEAR = 1987 + os.getpid() % 5
DAY = f"verl-{YEAR}.02.01"

pytestmark = pytest.mark.server


@pytest.fixture
def mine(templated: Elasticsearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elasticsearch]:
    """A server on which the kit sees the indices of this test alone, and a cluster without nodes."""
    (tmp_path / "settings.yml").write_text("deploy: {target: slurm, slurm: {folder: /shared}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Slurm, "remove", lambda *_, state: [])
    for module in (store, elastic):
        monkeypatch.setattr(module, "ALL_PATTERN", f"{DAY}*")
    monkeypatch.setattr(state, "INDEX", f"{state.INDEX}_undeploy_{YEAR}")
    monkeypatch.setattr(deploy, "STEPS_INDEX", f"verl_steps_undeploy_{YEAR}")
    yield templated
    templated.indices.delete(index=[DAY, state.INDEX], ignore_unavailable=True)


def undeploy(ask: Callable[..., Outcome], answer: str) -> Outcome:
    sys.stdin = io.StringIO(answer)
    try:
        return ask("undeploy", "--data")
    finally:
        sys.stdin = sys.__stdin__


def test_what_would_be_lost_is_told_and_goes_only_by_the_word(mine: Elasticsearch, ask: Callable[..., Outcome]) -> None:
    for run in ("undeploy-a", "undeploy-b"):
        mine.index(index=DAY, document=record(run, 10), refresh=True)
    pins.add(mine, Pin("undeploy-b", "2026-01-01T00:00:00Z"))
    for answer in ("no\n", ""):
        kept = undeploy(ask, answer)
        assert re.fullmatch(
            r"This deletes for good all records, samples, summaries and pins in Elasticsearch at http://\S+, "
            r"whoever sent them: 2 documents of 2 runs, 1 of them pinned\. What waits on the nodes goes too\.\n"
            r"Type `delete` to go on:\n",
            kept.out,
        )
        assert kept.err == "error: Nothing was removed; leave --data out to remove the agents alone.\n"
        assert mine.indices.exists(index=DAY)
    gone = undeploy(ask, "delete\n")
    assert (gone.code, gone.err) == (0, "")
    assert gone.out.endswith("no agent was there\nElasticsearch: 1 daily index, summaries and pins deleted\n")
    assert not mine.indices.exists(index=[DAY, state.INDEX], allow_no_indices=False)


def test_where_nothing_is_there_that_is_told(mine: Elasticsearch, ask: Callable[..., Outcome]) -> None:
    done = undeploy(ask, "delete\n")
    assert done.out.startswith("There are no records in Elasticsearch at http")
    assert done.out.endswith("Elasticsearch: no daily index was there, summaries and pins deleted\n")
