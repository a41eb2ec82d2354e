"""What tests of step summaries share: making those of a run, and removing them."""

from collections.abc import Iterator

import pytest
from elasticsearch import Elasticsearch, helpers

from tests.documents import Document, record
from verl_ingest.catalog import metrics
from verl_ingest.index import mappings
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.summarise.run import Changes, bring_up_to_date

CATALOGUE = metrics.load()


@pytest.fixture
def summarise(store: ElasticStore, templated: Elasticsearch) -> Iterator:
    """Bring a run's summaries up to date; they are removed after the test."""
    runs = set()

    def bring(run_id: str, **options) -> Changes:
        runs.add(run_id)
        with store.open(run_id) as run:
            return bring_up_to_date(run, templated, catalogue=CATALOGUE, **options)

    yield bring
    for run_id in runs:
        remove_summaries(templated, run_id)


def remove_summaries(client: Elasticsearch, run_id: str) -> None:
    found = helpers.scan(client, index=mappings.STEPS_PATTERN, query={"query": {"term": {"run_id": run_id}}})
    actions = [{"_op_type": "delete", "_index": hit["_index"], "_id": hit["_id"]} for hit in found]
    helpers.bulk(client, actions, refresh=True)


def loss(run: str, step: int, rank: int, value: float, *, at: float | None = None, **fields) -> Document:
    return record(
        run, 10 * step if at is None else at, step=step, rank=rank, stage="actor", metrics={"loss": value}, **fields
    )
