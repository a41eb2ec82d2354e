"""Fixtures for what asks the store: the demo's run as the loader writes it, a writer for documents made by hand."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch, helpers

from tests.documents import START, Document, index_of
from verl_ingest.catalog import fields, metrics
from verl_ingest.context import step
from verl_ingest.demo import logs
from verl_ingest.index import mappings, state
from verl_ingest.load import files, pipeline
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

LONG_AFTER = START + 10 * 365 * 86_400_000  # ms: every run is over
DEMO = "ask-demo"


@pytest.fixture(scope="session")
def templated(elasticsearch: Elasticsearch) -> Elasticsearch:
    """The client of a server that has the kit's templates."""
    of_catalogues = mappings.templates(fields.load(), metrics.load().explicit_names(), documents_per_day=1_000_000)
    for template in (*of_catalogues, state.template()):
        if template.kind == "component_template":
            elasticsearch.cluster.put_component_template(name=template.name, **template.body)
        else:
            elasticsearch.indices.put_index_template(name=template.name, **template.body)
    return elasticsearch


@pytest.fixture(scope="session")
def store(templated: Elasticsearch) -> ElasticStore:
    return ElasticStore(templated)


@pytest.fixture(scope="session")
def demo(templated: Elasticsearch, demo_logs: Path) -> str:
    """The name of the demo's run, its rank logs loaded."""
    return load(templated, DEMO, *sorted(demo_logs.glob("*.jsonl")))


@pytest.fixture(scope="session")
def demo_with_console(templated: Elasticsearch, demo_logs: Path) -> str:
    """The name of the demo's run with its console besides."""
    return load(templated, f"console-of-{DEMO}", demo_logs)


@pytest.fixture(scope="session")
def demo_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    logs.write(folder)
    return folder


def load(client: Elasticsearch, run: str, *paths: Path) -> str:
    """Load log files as a run and return its name."""
    settings = Settings(timezone="Etc/UTC")
    summary = pipeline.load(files.discover(paths, Normaliser(settings), run=run).logs, client, settings)
    assert summary.complete
    client.indices.refresh(index=mappings.ALL_PATTERN)
    return run


@pytest.fixture
def write(templated: Elasticsearch) -> Iterator[Callable[[Iterable[Document]], None]]:
    """Write documents into the indices of their days; they are removed after the test."""
    written: list[tuple[str, str]] = []

    def write_all(documents: Iterable[Document]) -> None:
        actions = [
            {"_index": index_of(document), "_id": document["event_id"], "_source": document} for document in documents
        ]
        helpers.bulk(templated, actions, refresh=True)
        written.extend((action["_index"], action["_id"]) for action in actions)

    yield write_all
    actions = [{"_op_type": "delete", "_index": index, "_id": name} for index, name in written]
    helpers.bulk(templated, actions, raise_on_error=False, refresh=True)


@pytest.fixture
def context_of(store):
    def assemble(run_id: str, number: int, *, now: int = LONG_AFTER, window: int = 50) -> step.StepContext:
        with store.open(run_id) as run:
            return step.assemble(run, number, catalogue=metrics.load(), now=now, window=window)

    return assemble
