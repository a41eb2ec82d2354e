"""The saved objects: their shape, the fields they name, what their searches find in the demo's run."""

import copy
import json
import re
from urllib.parse import quote

import pytest
from elasticsearch import Elasticsearch

from tests.documents import START, line, record, sample
from tests.kql import Kql
from verl_ingest import changes, render
from verl_ingest.catalog import fields, metrics
from verl_ingest.index import mappings
from verl_ingest.kibana import objects
from verl_ingest.kibana.searches import SEARCHES, Search
from verl_ingest.links import kibana
from verl_ingest.query.times import parse_time
from verl_ingest.serve import drilldown
from verl_ingest.settings import Settings

SERVICE = Settings(service_url="https://kit.example/verl")
FOUND = "kibana-searches"
BY_ID = {search.id: search for search in SEARCHES}
searches = pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.id)


def test_the_ids_are_those_that_addresses_and_installed_objects_have():
    found = [(item["type"], item["id"]) for item in objects.objects(SERVICE)]
    assert found == [
        ("index-pattern", kibana.DATA_VIEW),
        ("search", "verl-step"),
        ("search", "verl-warnings"),
        ("search", "verl-nonfinite"),
        ("search", "verl-lowest-reward"),
        ("search", "verl-unparsed"),
    ]


def test_every_reference_is_to_an_object_of_the_same_file_that_comes_before():
    before = set()
    for item in objects.objects(SERVICE):
        assert {(r["type"], r["id"]) for r in item["references"]} <= before
        before.add((item["type"], item["id"]))


def test_the_shape_is_the_oldest_that_all_versions_import():
    for item in objects.objects(SERVICE):
        assert (item["coreMigrationVersion"], item["typeMigrationVersion"]) == ("8.8.0", "8.0.0")
        # What Kibana keeps as a text of JSON must be one here too, and name its reference.
        texts = ["fields", "fieldAttrs", "fieldFormatMap", "runtimeFieldMap", "sourceFilters"]
        if item["type"] == "search":
            source = json.loads(item["attributes"]["kibanaSavedObjectMeta"]["searchSourceJSON"])
            assert [source["indexRefName"]] == [reference["name"] for reference in item["references"]]
            assert source["query"]["language"] == "kuery"
        else:
            assert all(json.loads(item["attributes"][name]) is not None for name in texts)


@searches
def test_a_search_names_fields_of_the_catalogue_only_and_its_query_is_kql(search: Search):
    known = {field.name for field in fields.load().fields if field.index != "steps"}
    assert {*search.columns, *(field for field, _ in search.sort), *Kql(search.query).fields} <= known


@pytest.mark.parametrize("text", ["step :", "step : (1 or )", "step : 1 and", "step 1", "(step : 1", "step : 1 2"])
def test_the_check_of_kql_can_fail(text: str):
    with pytest.raises(ValueError):
        Kql(text)


def test_the_data_view_knows_the_indices_the_time_and_every_field():
    attributes = objects.objects(SERVICE)[0]["attributes"]
    assert (attributes["title"], attributes["timeFieldName"]) == (mappings.ALL_PATTERN, "@timestamp")
    described = json.loads(attributes["fieldAttrs"])
    assert described.keys() == {field.name for field in fields.load().fields if field.index != "steps"}
    assert all(0 < len(field["customDescription"]) <= 300 for field in described.values())


def test_numbers_are_shown_as_they_are():
    formats = json.loads(objects.objects(SERVICE)[0]["attributes"]["fieldFormatMap"])
    assert formats["step"] == formats["pid"] == {"id": "number", "params": {"pattern": "0"}}
    assert formats["value"] == formats["metrics.actor/pg_loss"] == {"id": "string"}
    metrics_shown = {name for name in formats if name.startswith("metrics.")}
    assert metrics_shown == {f"metrics.{name}" for name in metrics.load().explicit_names()}


@pytest.mark.parametrize("run", ["ppo-demo", "r'17 #a!b/中", "a|b", "a&step=3", "+%2F"])
def test_a_step_key_leads_to_its_step(run: str):
    formats = json.loads(objects.objects(SERVICE)[0]["attributes"]["fieldFormatMap"])
    template = formats["step_key"]["params"]["urlTemplate"]
    address = template.replace("{{value}}", quote(f"{run}|128", safe="!'()*~"))  # as encodeURIComponent
    path, _, query = address.partition("?")
    assert path == "https://kit.example/verl/drilldown"
    wanted = drilldown.read(query)
    assert (wanted.run_id, wanted.step) == (run, 128)


def test_without_a_service_a_step_key_is_no_link():
    formats = json.loads(objects.objects(Settings())[0]["attributes"]["fieldFormatMap"])
    assert "step_key" not in formats


def test_each_object_has_its_own_mark():
    marks = [objects.content(item)["_meta"] for item in objects.objects(SERVICE)]
    assert all(mark["managed_by"] == "verl-ingest" for mark in marks)
    for item, mark in zip(objects.objects(SERVICE), marks, strict=True):
        assert mark["content"] == changes.content_hash(objects.content(item))
    assert len({mark["content"] for mark in marks}) == len(marks)


def test_the_content_is_the_same_whichever_version_gives_it_back():
    view, search = objects.objects(SERVICE)[:2]
    popular = copy.deepcopy(view)
    described = json.loads(view["attributes"]["fieldAttrs"])
    described["step"]["count"] = 7
    described["metrics.my/own"] = {"count": 1}
    popular["attributes"]["fieldAttrs"] = json.dumps(described)
    del popular["attributes"]["runtimeFieldMap"], popular["attributes"]["sourceFilters"]
    assert objects.content(popular) == objects.content(view)

    attributes = dict(search["attributes"])
    texts = {name: attributes.pop(name) for name in ("title", "description")}
    tab = {"id": "x", "label": "Untitled", "attributes": attributes | {"timeRestore": False}}
    in_tabs = {**search, "attributes": texts | {"tabs": [tab]}}
    assert objects.content(in_tabs) == objects.content(search)
    two = {**search, "attributes": texts | {"tabs": [tab, tab]}}
    assert objects.content(two) != objects.content(search)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a column", lambda search: search["attributes"]["columns"].append("rank")),
        ("the title", lambda search: search["attributes"].update(title="Mine")),
        ("the description", lambda search: search["attributes"].update(description="Mine")),
        ("the order", lambda search: search["attributes"].update(sort=[])),
        ("the data view", lambda search: search["references"][0].update(id="other")),
    ],
)
def test_a_change_of_a_search_is_seen(what, change):
    search = objects.objects(SERVICE)[1]
    changed = copy.deepcopy(search)
    change(changed)
    assert objects.content(changed) != objects.content(search)


def test_the_committed_file_is_what_kibana_imports_by_hand():
    lines = (render.root() / "deploy/kibana/verl.ndjson").read_text().splitlines()
    assert [json.loads(line) for line in lines] == objects.objects(Settings.model_construct())
    assert re.search(r'"id": "verl".*"type": "index-pattern"', lines[0])


# What the searches find


@pytest.fixture
def find(templated: Elasticsearch):
    """Ask what a saved search asks, in one run; returns the documents in its order."""

    def search(identity: str, run_id: str, size: int = 1_000) -> list[dict]:
        saved = BY_ID[identity]
        answer = templated.search(
            index=mappings.ALL_PATTERN,
            query={"bool": {"filter": [Kql(saved.query).query, {"term": {"run_id": run_id}}]}},
            sort=[{field: {"order": order, "unmapped_type": "boolean"}} for field, order in saved.sort],
            size=size,
        )
        return [hit["_source"] for hit in answer["hits"]["hits"]]

    return search


@pytest.fixture
def made(write) -> str:
    """A run with one of each: what each search looks for, and what it must not find."""
    write(
        [
            record(FOUND, 1, step=4, rank=0, metrics={"kl": 0.1}),
            record(FOUND, 2, step=4, rank=1, metrics={}, nonfinite=["kl"], flags=["nan:kl"]),
            line(FOUND, 3, "fine", level="info"),
            line(FOUND, 4, "hm", level="warning"),
            line(FOUND, 5, "hm", level="warn"),
            line(FOUND, 6, "no", level="critical"),
            line(FOUND, 7, "Traceback", **{"error.type": "ValueError"}),
            record(FOUND, 8, kind="unparsed", message="%&/", flags=["unparsed"]),
            *(sample(FOUND, 9 + score, 4, score) for score in (0.5, -1.0, 1.0)),
            sample(FOUND, 20, 4, None),
        ]
    )
    return FOUND


@pytest.mark.parametrize(
    ("identity", "seconds"),
    [
        ("verl-step", [1, 2, 8, 9.5, 10, 20]),
        ("verl-warnings", [7, 6, 5, 4]),
        ("verl-nonfinite", [2]),
        ("verl-lowest-reward", [8, 9.5, 10]),
        ("verl-unparsed", [8]),
    ],
)
def test_a_search_finds_what_its_title_says_in_its_order(made, find, identity, seconds):
    assert [(parse_time(found["@timestamp"]) - START) / 1_000 for found in find(identity, made)] == seconds


def test_the_searches_find_what_is_planted_in_the_demo(demo_with_console, find):
    warnings = find("verl-warnings", demo_with_console)
    assert any("NaN detected in reward tensor" in found["message"] for found in warnings)
    assert {found["log.level"] for found in warnings} <= {"warning", "error"}
    nonfinite = find("verl-nonfinite", demo_with_console)
    assert {(found["step"], found["rank"], *found["nonfinite"]) for found in nonfinite} == {(137, 5, "reward_mean")}


@searches
def test_the_page_on_kibana_names_every_search_with_its_query(search: Search):
    page = (render.root() / "docs/kibana.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{search.id}` | {search.title}"))
    assert f"`{search.query}`" in row
