"""How many documents a run has by now."""

from elasticsearch import Elasticsearch

from verl_ingest.index.mappings import ALL_PATTERN


def count(client: Elasticsearch, run: str) -> int:
    """Count a run's records and samples; 0 while the first index is just being made, which answers 503."""
    client.indices.refresh(index=ALL_PATTERN)
    answer = client.options(ignore_status=503).count(index=ALL_PATTERN, query={"term": {"run_id": run}})
    return answer.get("count", 0)
