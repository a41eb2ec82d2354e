"""No bytes in a log make Elasticsearch refuse a document: hostile files into the real server, all found again."""

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from elasticsearch import Elasticsearch
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as examples

from tests import hostile
from verl_ingest.catalog import fields, metrics
from verl_ingest.context import step as step_context
from verl_ingest.index import mappings
from verl_ingest.load import duration, files, pipeline, reader
from verl_ingest.load.pipeline import Summary
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

SETTINGS = Settings(timezone="Etc/UTC")
DAY = 3_456_000_000  # 2079-07-08, in seconds: no other test's
Document = dict[str, Any]
RUNS = itertools.count()
pytestmark = pytest.mark.usefixtures("templated")


@pytest.fixture(scope="module")
def server(elasticsearch: Elasticsearch) -> Iterator[Elasticsearch]:
    """The server's client; the indices that these runs came into are deleted behind them."""
    yield elasticsearch
    elasticsearch.indices.refresh(index=mappings.ALL_PATTERN)
    days = {"days": {"terms": {"field": "_index", "size": 1_000}}}
    found = elasticsearch.search(
        index=mappings.ALL_PATTERN, size=0, query={"prefix": {"run_id": "refused-"}}, aggs=days
    )
    for bucket in found["aggregations"]["days"]["buckets"]:
        if not "verl-2015" < bucket["key"] < "verl-2050":
            elasticsearch.indices.delete(index=bucket["key"])


def write(place: Path, contents: dict[str, Iterable[bytes]]) -> Path:
    """Write the files of a new run, last changed on DAY; return its folder."""
    folder = place / f"refused-{next(RUNS)}-{os.getpid()}"
    for name, lines in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}\n" + b"".join(line + b"\n" for line in lines))
        os.utime(path, (DAY, DAY))
    return folder


def load(folder: Path, client: Elasticsearch) -> Summary:
    """Load a run, of which every line must become a document or be dropped by a rule."""
    summary = pipeline.load(files.discover([folder], Normaliser(SETTINGS)).logs, client, SETTINGS)
    assert (summary.refused, summary.unreadable) == ({}, [])
    assert summary.lines == sum(path.read_bytes().count(b"\n") for path in folder.rglob("*") if path.is_file())
    assert summary.lines == summary.documents + sum(summary.dropped.values())
    client.indices.refresh(index=mappings.ALL_PATTERN)
    return summary


def normalised(folder: Path) -> dict[str, Document]:
    """Return what the normaliser makes of a run's lines: id -> index and document."""
    normaliser, found = Normaliser(SETTINGS), {}
    for log in files.discover([folder], normaliser).logs:
        file = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
        for part in reader.read(log, final=False):
            block = normaliser.block(file, part.data, offset=part.offset, fallback=duration.began(log))
            body = block.dated + b"".join(undated.action() for undated in block.undated)
            pairs = [orjson.loads(line) for line in body.split(b"\n")[:-1]]
            for action, document in zip(pairs[::2], pairs[1::2], strict=True):
                found[action["index"]["_id"]] = {"_index": action["index"]["_index"], **document}
    return found


def search(client: Elasticsearch, ids: Iterable[str], *conditions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the hits of some ids, each with the names of the conditions that it fulfils."""
    query = {"bool": {"filter": [{"ids": {"values": list(ids)}}], "should": list(conditions)}}
    answer = client.search(index=mappings.ALL_PATTERN, query=query, size=10_000, sort=["_doc"])
    return answer["hits"]["hits"]


def equals(field: str, value: float) -> dict[str, Any]:
    return {"range": {field: {"gte": value, "lte": value, "_name": f"{field}={value!r}"}}}


def is_one(field: str, value: str) -> dict[str, Any]:
    return {"term": {field: {"value": value, "_name": f"{field}={value}"}}}


def conditions_of(document: Document) -> dict[str, dict[str, Any]]:
    """Return what must find a document: its numbers, its flags, the names of what was not finite. Name -> query."""
    found = [equals(f"metrics.{name}", number) for name, number in document.get("metrics", {}).items()]
    found += [equals(name, document[name]) for name in ("step", "rank", "value", "process.pid") if name in document]
    found += [is_one("flags", flag) for flag in document.get("flags", ())]
    found += [is_one("nonfinite", name) for name in document.get("nonfinite", ())]
    return {next(iter(next(iter(query.values())).values()))["_name"]: query for query in found}


@examples(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # each try is a run on the server: too slow to search for the smallest
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(contents=hostile.files)
@example(
    contents={"rank0.jsonl": [hostile._object([(name, "0.5")]).encode("utf-8", "replace") for name in hostile.NAMES]}
)
@example(contents={"rank0.jsonl": [f'{{"{name}": {{"a": 1}}, "loss": 1}}'.encode() for name in hostile.FIELDS]})
@example(contents={"rank0.jsonl": [f'{{"{name}": "text", "loss": 1}}'.encode() for name in hostile.FIELDS]})
@example(contents={"rank0.jsonl": [f'{{"step": {number}, "rank": {number}}}'.encode() for number in hostile.NUMBERS]})
@example(contents={"metrics.jsonl": [f'{{"step": 1, "data": {{"timing_s/step": {"9" * 400}}}}}'.encode(), b"x"]})
@example(contents={"console.log": [f"step:1 - timing_s/step:{10**30}".encode(), b"no time"]})
@example(contents={"rank0.jsonl": [f'{{"a": 1, "ts": {time}}}'.encode() for time in hostile.TIMES]})
def test_every_line_of_a_hostile_file_is_found_again(
    server: Elasticsearch, tmp_path: Path, contents: dict[str, list[bytes]]
) -> None:
    folder = write(tmp_path, contents)
    summary = load(folder, server)
    expected = normalised(folder)
    assert (summary.created, len(expected)) == (summary.documents, summary.documents)
    conditions = {event_id: conditions_of(document) for event_id, document in expected.items()}
    every = {name: query for queries in conditions.values() for name, query in queries.items()}
    hits = {hit["_id"]: hit for hit in search(server, expected, *every.values())}
    assert hits.keys() == expected.keys()
    for event_id, hit in hits.items():
        document = expected[event_id]
        assert {"_index": hit["_index"], **hit["_source"]} == document
        assert fields.problems(hit["_source"]) == []
        assert "normalizer_error" not in document.get("flags", [])
        assert hit.get("_ignored", []) == []
        assert set(conditions[event_id]) <= set(hit.get("matched_queries", ()))


FORMS = {
    "wide": ("verl_actor_rank0.jsonl", '{{"step": {n}, "loss": {token}, "timestamp_ns": 3456000000000000000}}'),
    "long": ("verl_critic_rank0.jsonl", '{{"step": {n}, "metric_name": "loss", "value": {token}}}'),
    "file logger": ("metrics.jsonl", '{{"step": {n}, "data": {{"loss": {token}}}}}'),
    "step line": ("console.log", "step:{n} - loss:{token} - kl:0.5"),
    "bracketed": ("driver.log", "[INFO] [trainer/x.py:1] PPO Step {n} | loss: {token} | kl: 0.5"),
}


def not_finite_lines() -> Iterator[tuple[str, str, bytes]]:
    """Yield name of the file, kind and line for each spelling in each form that may have it."""
    numbers = itertools.count(1)
    for kind, tokens in hostile.NOT_FINITE.items():
        for (form, (name, text)), token in itertools.product(FORMS.items(), tokens):
            is_text = token[0] == '"'
            if not is_text or form in ("wide", "long"):
                yield name, kind, text.format(n=next(numbers), token=token).encode()


def test_each_spelling_of_what_is_not_finite_is_named_in_every_form(server: Elasticsearch, tmp_path: Path) -> None:
    cases = list(not_finite_lines())
    assert {name for name, _, _ in cases} == {name for name, _ in FORMS.values()}
    folder = write(tmp_path, {name: [line for of, _, line in cases if of == name] for name, _, _ in cases})
    load(folder, server)
    for kind in hostile.NOT_FINITE:
        query = {
            "bool": {
                "filter": [
                    {"term": {"run_id": folder.name}},
                    {"term": {"nonfinite": "loss"}},
                    {"term": {"flags": f"{kind}:loss"}},
                ]
            }
        }
        hits = server.search(index=mappings.ALL_PATTERN, query=query, size=1_000)["hits"]["hits"]
        found = {hit["_source"]["step"] for hit in hits}
        wanted = {number for number, (_, of, _) in enumerate(cases, 1) if of == kind}
        assert [cases[number - 1] for number in sorted(wanted ^ found)] == []
        assert not any("loss" in hit["_source"].get("metrics", {}) for hit in hits)


@pytest.mark.parametrize("seconds", [-1, 2**34], ids=["1969", "2514"])
def test_a_file_whose_last_change_no_index_can_hold(server: Elasticsearch, tmp_path: Path, seconds: int) -> None:
    folder = write(tmp_path, {"console.log": [b"a line without a time"]})
    os.utime(folder / "console.log", (seconds, seconds))
    assert load(folder, server).created == 2


def crowded(step: int, names: Iterable[str]) -> bytes:
    metrics = dict.fromkeys(names, step / 8)
    return orjson.dumps({"step": step, "rank": 0, "stage": "actor", **metrics, "kl_divergence": step / 100})


def found_by_value(client: Elasticsearch, run: str, name: str, value: float) -> int:
    query = {"bool": {"filter": [{"term": {"run_id": run}}, equals(f"metrics.{name}", value)]}}
    return client.count(index=mappings.ALL_PATTERN, query=query)["count"]


def test_5000_names_over_a_run_are_all_found_and_what_is_beyond_the_limit_is_still_read(
    server: Elasticsearch, store: ElasticStore, tmp_path: Path
) -> None:
    """Lines of 1,050 new names each: after the eighth the index takes no more, and the ninth is kept all the same."""
    day = DAY + 86_400  # an index of its own, which they fill up
    steps = [[f"layer.{step}.{number}/norm" for number in range(1_050)] for step in range(9)]
    folder = write(tmp_path, {"verl_actor_rank0.jsonl": [crowded(step, names) for step, names in enumerate(steps)]})
    os.utime(folder / "verl_actor_rank0.jsonl", (day, day))
    summary = load(folder, server)
    assert (summary.created, summary.flagged) == (len(steps) + 1, 0)
    hits = {hit["_source"].get("step"): hit for hit in search(server, normalised(folder))}
    assert {step: len(hits[step]["_source"]["metrics"]) for step in range(9)} == dict.fromkeys(range(9), 1_051)
    assert all(hits[step].get("_ignored", []) == [] for step in range(5))  # 5,250 names
    for step, names in enumerate(steps[:5]):
        assert found_by_value(server, folder.name, names[-1], step / 8) == 1
    ignored = [name.removeprefix("metrics.") for name in hits[8]["_ignored"]]
    assert len(ignored) > 500
    assert set(ignored) <= set(steps[8])
    query, of = {"term": {"run_id": folder.name}}, {"stats": {"field": "metrics.kl_divergence"}}
    answer = server.search(index=mappings.ALL_PATTERN, size=0, query=query, aggs={"kl": of})["aggregations"]["kl"]
    assert (answer["count"], answer["max"]) == (9, 0.08)
    with store.open(folder.name) as run:
        body = step_context.assemble(run, 8, catalogue=metrics.load(), now=day * 1_000).body
    shown = {metric["name"]: metric["mean"] for metric in body["metrics"]}
    assert {name: shown.get(name) for name in ignored} == dict.fromkeys(ignored, 1.0)
    assert shown["kl_divergence"] == 0.08
