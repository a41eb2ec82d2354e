"""The local Elasticsearch starts, answers, and leaves nothing behind."""


def test_documents_come_back(elasticsearch):
    index = "local-roundtrip"
    elasticsearch.index(index=index, id="a", document={"step": 128}, refresh=True)
    hits = elasticsearch.search(index=index, query={"term": {"step": 128}})["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["a"]
    elasticsearch.indices.delete(index=index)
