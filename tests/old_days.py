"""Old daily indices on a server that may be shared: of a year that no other test has, pins of their own.

Their age can't be set, so that it is the clock that is moved.
"""

import os
from collections.abc import Callable, Iterator

import pytest
from elasticsearch import Elasticsearch, helpers

from tests.documents import Document, record, sample
from verl_ingest.cli import ask as ask_commands
from verl_ingest.cli import retention as commands
from verl_ingest.index import apply, state
from verl_ingest.retention import store
from verl_ingest.retention.due import DAY_MS

YEAR = 2001 + os.getpid() % 20
MINE = f"verl-{YEAR}.*,verl-samples-{YEAR}.*"


def records_of(day: int) -> str:
    return f"verl-{YEAR}.01.{day:02}"


def samples_of(day: int) -> str:
    return f"verl-samples-{YEAR}.01.{day:02}"


@pytest.fixture
def own_days(templated: Elasticsearch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elasticsearch]:
    """A server on which the kit sees the indices of this test alone, and pins of its own."""
    own = f"{state.INDEX}_{YEAR}"
    apply.KINDS["index_template"].write(templated, state.TEMPLATE, state.template().body)
    monkeypatch.setattr(store, "ALL_PATTERN", MINE)
    monkeypatch.setattr(commands, "ALL_PATTERN", MINE)
    monkeypatch.setattr(state, "INDEX", own)
    quiet = templated.options(ignore_status=404)
    yield templated
    monkeypatch.undo()
    left = [*templated.indices.get_settings(index=MINE, expand_wildcards="all"), own]
    for name in left:
        quiet.indices.put_settings(index=name, settings={"index.blocks.read_only": None})
        quiet.indices.delete(index=name)


@pytest.fixture
def in_days(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let it be so many days later for the commands."""
    later = ask_commands.now_ms

    def move(days: int) -> None:
        monkeypatch.setattr(commands, "now_ms", lambda: later() + days * DAY_MS)

    return move


@pytest.fixture
def fill_day(own_days: Elasticsearch) -> Callable[..., None]:
    """Write a record of each run into an index."""

    def write(index: str, *runs: str) -> None:
        day = index[-10:].replace(".", "-")
        make = sample if "samples" in index else record
        more = {"step": 1, "score": 0.5} if "samples" in index else {"step": 1, "metrics": {"loss": 1.0}}
        documents = [make(run, 0, **more) | {"@timestamp": f"{day}T12:00:00.000Z"} for run in runs]
        helpers.bulk(own_days, [_action(index, document) for document in documents], refresh=True)

    return write


def _action(index: str, document: Document) -> dict[str, object]:
    return {"_index": index, "_id": document["event_id"], "_source": document}


def there(server: Elasticsearch) -> set[str]:
    return set(server.indices.get_settings(index=MINE, expand_wildcards="all"))
