"""Index templates: what is built from the catalogues, and what a real server then takes, finds and refuses."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticsearch import BadRequestError, Elasticsearch

from verl_ingest import changes
from verl_ingest.catalog import fields, metrics
from verl_ingest.index import mappings

INDEX = "verl-1999.12.31"
SAMPLES_INDEX = "verl-samples-1999.12.31"
BASE = {"@timestamp": "1999-12-31T16:00:09.350000038Z", "run_id": "mapped", "kind": "metric", "step": 1}
MANY = 1_050

CATALOGUE = fields.check(
    {
        "fields": [
            {"name": name, "type": kind, "short": "s", "example": example, "from": "f", **more}
            for name, kind, example, more in (
                ("run_id", "keyword", "r", {}),
                ("step", "long", 1, {"mapping": {"coerce": False}}),
                ("rank", "integer", 1, {"mapping": {"coerce": False}}),
                ("value", "double", 1.0, {}),
                ("message", "text", "m", {}),
                ("metrics", "object", {"a": 1.0}, {}),
                ("extra", "flattened", {"a": 1}, {}),
                ("event_id", "keyword", "i", {"mapping": {"index": False, "doc_values": False}}),
                ("event", "keyword", "e", {"index": "records"}),
                ("sample.input", "text", "s", {"index": "samples"}),
                ("summary", "object", {"a": ["b"]}, {"index": "steps", "mapping": {"enabled": False}}),
            )
        ]
        + [{"name": "number", "type": "alias", "short": "s", "path": "rank"}],
        "flags": {},
        "rules": {},
    }
)


def build(**changes: Any) -> dict[str, dict[str, Any]]:
    found = mappings.templates(CATALOGUE, ["kl", "actor/kl_loss"], **{"documents_per_day": 1, **changes})
    return {template.name: template.body for template in found}


def test_the_common_fields_and_settings_stand_in_the_kits_component():
    double = {"type": "double", "index": False}
    assert build()["verl@kit"]["template"] == {
        "settings": {
            "index.mode": "logsdb",
            "index.mapping.source.mode": "stored",
            "index.sort.field": ["run_id", "step", "stage", "rank"],
            "index.number_of_shards": "1",
            "index.auto_expand_replicas": "0-1",
            "index.mapping.total_fields.limit": "8000",
            "index.mapping.total_fields.ignore_dynamic_beyond_limit": "true",
            "index.mapping.ignore_malformed": "true",
            "index.mapping.ignore_above": "8191",
            "index.query.default_field": ["run_id", "message", "event", "sample.input"],
        },
        "mappings": {
            "dynamic": False,
            "date_detection": False,
            "dynamic_templates": [{"metrics": {"path_match": "metrics.*", "mapping": double}}],
            "properties": {
                "run_id": {"type": "keyword"},
                "step": {"type": "long", "coerce": False},
                "rank": {"type": "integer", "index": False, "coerce": False},
                "value": double,
                "message": {"type": "text", "norms": False},
                "extra": {"type": "flattened", "depth_limit": 20},
                "event_id": {"type": "keyword", "index": False, "doc_values": False},
                "number": {"type": "alias", "path": "rank"},
                "metrics": {
                    "type": "object",
                    "dynamic": True,
                    "subobjects": False,
                    "properties": {"actor/kl_loss": double, "kl": double},
                },
            },
        },
    }


def test_each_index_template_adds_the_fields_that_it_alone_has():
    built = build()
    daily = ["verl@lifecycle", "verl@custom"]
    for name, pattern, priority, optional, own in (
        ("verl", "verl-*", 200, daily, {"event": {"type": "keyword"}}),
        ("verl-samples", "verl-samples-*", 201, daily, {"sample.input": {"type": "text", "norms": False}}),
        ("verl-steps", "verl_steps*", 200, ["verl@custom"], {"summary": {"type": "object", "enabled": False}}),
    ):
        body = {key: value for key, value in built[name].items() if key != "_meta"}
        assert body == {
            "index_patterns": [pattern],
            "priority": priority,
            "composed_of": ["verl@kit", *optional],
            "ignore_missing_component_templates": optional,
            "template": {"mappings": {"properties": own}},
        }


@pytest.mark.parametrize(
    ("documents", "shards"), [(1, "1"), (500_000_000, "1"), (500_000_001, "2"), (2_000_000_000, "4")]
)
def test_a_shard_for_each_500_million_documents_a_day(documents: int, shards: str):
    settings = build(documents_per_day=documents)["verl@kit"]["template"]["settings"]
    assert settings["index.number_of_shards"] == shards


def test_the_hash_sees_a_change_of_content_and_no_other():
    body = build()["verl"]
    changed = copy.deepcopy(body)
    changed["_meta"] = {"managed_by": "someone"}
    assert changes.content_hash(changed) == body["_meta"]["content"]
    changed["template"]["mappings"]["properties"]["event"]["type"] = "text"
    assert changes.content_hash(changed) != body["_meta"]["content"]


def test_every_field_of_the_catalogue_is_in_one_template():
    loaded = fields.load()
    built = mappings.templates(loaded, metrics.load().explicit_names(), documents_per_day=1)
    names = [name for template in built for name in template.body["template"]["mappings"]["properties"]]
    assert sorted(names) == sorted(loaded.by_name)


# A real server.

Put = Callable[..., None]


@pytest.fixture(scope="module")
def server(templated: Elasticsearch) -> Iterator[Elasticsearch]:
    yield templated
    templated.options(ignore_status=404).indices.delete(index=f"{INDEX},{SAMPLES_INDEX}", ignore_unavailable=True)


@pytest.fixture
def put(server: Elasticsearch) -> Put:
    """Write a document: BASE and the given fields, found at once."""

    def write(name: str, index: str = INDEX, **fields: Any) -> None:
        server.index(index=index, id=name, document=BASE | fields, refresh=True)

    return write


def found(server: Elasticsearch, query: dict[str, Any], index: str = INDEX) -> list[str]:
    hits = server.search(index=index, query=query, size=100, sort=["_doc"])["hits"]["hits"]
    return sorted(hit["_id"] for hit in hits)


def ignored(server: Elasticsearch, name: str) -> list[str]:
    hits = server.search(index=INDEX, query={"ids": {"values": [name]}})["hits"]["hits"]
    return sorted(hits[0].get("_ignored", []))


TAKEN = {
    "text_in_a_metric": {"metrics": {"loss": "n/a", "other": 1}},
    "text_in_a_new_metric": {"metrics": {"first_seen_as_text": "n/a"}},
    "truth_in_a_metric": {"metrics": {"is_done": True}},
    "object_in_a_metric": {"metrics": {"nested": {"a": 1, "b": {"c": 2}}}},
    "list_in_a_metric": {"metrics": {"several": [1, 2]}},
    "null_in_a_metric": {"metrics": {"nothing": None}},
    "no_metrics": {"metrics": None},
    "text_in_a_number": {"rank": "three"},
    "fraction_in_a_step": {"step": 12.7},
    "step_over_64_bits": {"step": 2**70},
    "rank_over_32_bits": {"rank": 2**40},
    "keyword_of_40000_characters": {"stage": "x" * 40_000},
    "keyword_of_11000_chinese_characters": {"stage": "汉" * 11_000},
    "message_of_3_million_characters": {"message": "x" * 3_000_000},
    "control_characters": {"message": "a\0b\x01\x1b[36m", "stage": "a\0b"},
    "unknown_fields": {"foo": {"a": 1}, "bar": [1, {"x": 2}], "a.b.c": 3},
    "extra_of_all_kinds": {"extra": {"a": 1, "b": {"c": [1, 2, {"d": None}]}, "e.f": 2, "": 3}},
    "extra_20_deep": {"extra": json.loads('{"a":' * 20 + "1" + "}" * 20)},
    "extra_of_20000_chinese_characters": {"extra": {"k": "汉" * 20_000}},
    "first_moment": {"@timestamp": "1970-01-01T00:00:00Z"},
    "last_moment": {"@timestamp": "2262-04-11T23:47:16.854775807Z"},
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_strange_document_is_taken_and_kept_whole(server: Elasticsearch, put: Put, name: str):
    put(name, **TAKEN[name])
    assert server.get(index=INDEX, id=name)["_source"] == BASE | TAKEN[name]


REFUSED = {
    "no_time": {"@timestamp": None},
    "time_that_is_none": {"@timestamp": "yesterday"},
    "time_before_1970": {"@timestamp": "1969-12-31T23:59:59Z"},
    "time_after_2262": {"@timestamp": "2263-01-01T00:00:00Z"},
    "empty_metric_name": {"metrics": {"": 1}},
    "white_metric_name": {"metrics": {" ": 1}},
    "scalar_for_metrics": {"metrics": 3},
    "scalar_for_host": {"host": "node"},
    "scalar_for_extra": {"extra": 3},
    "nul_in_a_key_of_extra": {"extra": {"a\0b": 1}},
    "extra_21_deep": {"extra": json.loads('{"a":' * 21 + "1" + "}" * 21)},
    "key_of_extra_too_long": {"extra": {"k" * 32_767: 1}},
    "object_for_step": {"step": {"a": 1}},
    "object_for_run_id": {"run_id": {"a": 1}},
    "object_for_message": {"message": {"a": 1}},
    "alias_written": {"hostname": "node"},
    "empty_part_of_a_name": {"a..b": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_normaliser_must_prevent_is_still_refused(put: Put, name: str):
    with pytest.raises(BadRequestError, match="document_parsing_exception"):
        put(name, **REFUSED[name])


def test_a_metric_that_began_as_0_keeps_its_fraction(server: Elasticsearch, put: Put):
    put("whole", metrics={"began_as_0": 0})
    put("fraction", metrics={"began_as_0": 0.75})
    assert found(server, {"range": {"metrics.began_as_0": {"gt": 0.5}}}) == ["fraction"]
    stats = server.search(index=INDEX, size=0, aggs={"s": {"stats": {"field": "metrics.began_as_0"}}})
    assert stats["aggregations"]["s"] == {"count": 2, "min": 0.0, "max": 0.75, "avg": 0.375, "sum": 0.75}


def test_a_double_beyond_the_range_of_a_float_is_found(server: Elasticsearch, put: Put):
    put("large", metrics={"grad_norm": 3.5e38})
    assert found(server, {"term": {"metrics.grad_norm": 3.5e38}}) == ["large"]


def test_what_does_not_fit_a_field_is_named_in_ignored(server: Elasticsearch, put: Put):
    put("misfit", rank="three", step=12.7, stage="汉" * 11_000, metrics={"loss": "n/a", "fits": 1})
    assert ignored(server, "misfit") == ["metrics.loss", "rank", "stage", "step"]
    assert found(server, {"term": {"step": 12}}) == []
    assert found(server, {"term": {"metrics.fits": 1}}) == ["misfit"]


@pytest.mark.parametrize(
    "name",
    [
        "timing(s)/gen",
        "val-core/gsm8k/reward/mean@4",
        "Clip Fraction",
        "奖励",
        "a.b",
        "a..b",
        ".",
        "*",
        'say "x"',
        "_id",
    ],
)
def test_a_metric_is_found_under_its_name_byte_for_byte(server: Elasticsearch, put: Put, name: str):
    put("named", metrics={name: 0.25, f"{name}_": 1})
    answer = server.search(
        index=INDEX, size=0, query={"ids": {"values": ["named"]}}, aggs={"m": {"max": {"field": f"metrics.{name}"}}}
    )
    assert answer["aggregations"]["m"]["value"] == 0.25


def test_names_that_differ_in_a_character_stay_apart(server: Elasticsearch, put: Put):
    put("alike", metrics={"a/b": 1, "a_b": 2})
    assert found(server, {"term": {"metrics.a/b": 1}}) == ["alike"]
    assert found(server, {"term": {"metrics.a_b": 1}}) == []


def test_a_document_of_1050_metrics(server: Elasticsearch, put: Put):
    put("many", metrics={f"many_{number}": number for number in range(MANY)})
    assert ignored(server, "many") == []
    assert found(server, {"term": {f"metrics.many_{MANY - 1}": MANY - 1}}) == ["many"]


def test_beyond_the_field_limit_a_new_metric_is_kept_but_one_of_the_catalogue_is_still_found(
    server: Elasticsearch, put: Put
):
    index = "verl-1999.12.30"
    crowd = {f"crowd_{number}": number for number in range(mappings.FIELD_LIMIT)}
    try:
        put("crowded", index=index, metrics=crowd)
        put("later", index=index, metrics={"kl_divergence": 0.5, "too_late": 1})
        hit = server.search(index=index, query={"term": {"metrics.kl_divergence": 0.5}})["hits"]["hits"][0]
        assert (hit["_id"], hit["_ignored"]) == ("later", ["metrics.too_late"])
        assert hit["_source"]["metrics"] == {"kl_divergence": 0.5, "too_late": 1}
    finally:
        server.indices.delete(index=index)


def test_the_logs_own_names_find_the_moved_fields(server: Elasticsearch, put: Put):
    put("moved", **{"host.name": "train-node-02", "process.pid": 4105})
    assert found(server, {"term": {"hostname": "train-node-02"}}) == ["moved"]
    assert found(server, {"term": {"pid": 4105}}) == ["moved"]


def test_text_is_found_without_a_field_name(server: Elasticsearch, put: Put):
    put("worded", message="CUDA 显存 out of memory", **{"error.type": "torch.OutOfMemoryError"})
    for words in ("memory", "显存", "torch.OutOfMemoryError"):
        query = {"multi_match": {"query": words, "lenient": True}}  # Kibana asks so
        assert found(server, query) == ["worded"], words


def test_the_time_keeps_its_nanoseconds(server: Elasticsearch, put: Put):
    put("precise")
    query = {"range": {"@timestamp": {"gt": "1999-12-31T16:00:09.350000037Z", "lt": "1999-12-31T16:00:09.350000039Z"}}}
    assert "precise" in found(server, query)


def test_samples_have_their_own_fields(server: Elasticsearch, put: Put):
    put("sampled", index=SAMPLES_INDEX, **{"sample.score": 0.05, "sample.input": "two words", "event": "no field here"})
    assert found(server, {"range": {"sample.score": {"lt": 0.1}}}, SAMPLES_INDEX) == ["sampled"]
    assert found(server, {"match_phrase": {"sample.input": "two words"}}, SAMPLES_INDEX) == ["sampled"]
    assert found(server, {"term": {"event": "no field here"}}, SAMPLES_INDEX) == []


def test_the_patterns_part_records_and_samples(server: Elasticsearch, put: Put):
    put("a_record")
    put("a_sample", index=SAMPLES_INDEX)
    query = {"ids": {"values": ["a_record", "a_sample"]}}
    assert found(server, query, mappings.RECORDS_PATTERN) == ["a_record"]
    assert found(server, query, mappings.SAMPLES_PATTERN) == ["a_sample"]
    assert found(server, query, mappings.ALL_PATTERN) == ["a_record", "a_sample"]
