"""apply on a real server: what it writes, keeps, refuses; the server is left with the kit's templates."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests.command import Outcome
from verl_ingest import __version__
from verl_ingest.changes import Row
from verl_ingest.errors import StoreError
from verl_ingest.index import apply, client, lifecycle
from verl_ingest.index.mappings import Template, signed
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

INDEX = "verl-1999.11.30"
RIVAL = "rival-of-the-kit"
OPERATORS = {"template": {"settings": {"index": {"number_of_shards": "3"}}}}


@pytest.fixture(scope="module")
def restored(templated: Elasticsearch) -> Iterator[Elasticsearch]:
    """A server that has the kit's templates again after these tests."""
    if templated.cluster.exists_component_template(name="verl@custom"):
        pytest.skip("the server has a verl@custom of its own, which these tests would remove")
    yield templated
    remove(templated)
    apply.write(templated, apply.compare(templated, wanted()))


@pytest.fixture
def server(restored: Elasticsearch) -> Elasticsearch:
    """A server without any template of the kit."""
    remove(restored)
    return restored


def remove(server: Elasticsearch) -> None:
    quiet = server.options(ignore_status=404)
    for name in ("verl", "verl-samples", "verl-steps", "verl-kit-state", RIVAL):
        quiet.indices.delete_index_template(name=name)
    for name in ("verl@kit", "verl@custom"):
        quiet.cluster.delete_component_template(name=name)
    quiet.indices.delete(index=INDEX)


def wanted(**changes: Any) -> list[Template]:
    """Return what a server without ILM takes."""
    refused = lifecycle.assets()
    return [template for template in apply.wanted(Settings(**changes)) if template not in refused]


def run(server: Elasticsearch, templates: list[Template], *, overwrite: bool = False) -> dict[str, Row]:
    """Compare and write as the command does; returns each template's row by its name."""
    rows = apply.compare(server, templates, overwrite=overwrite)
    apply.write(server, rows)
    return {row.asset.name: row for row in rows}


def states(rows: dict[str, Row]) -> list[str]:
    return [row.state for row in rows.values()]


def index_template(server: Elasticsearch, name: str) -> dict[str, Any]:
    return server.indices.get_index_template(name=name)["index_templates"][0]["index_template"]


def test_the_first_run_creates_and_the_second_keeps(server: Elasticsearch):
    first = run(server, wanted())
    assert [row.name for row in first.values()] == [
        "component template verl@kit",
        "index template verl",
        "index template verl-samples",
        "index template verl-steps",
        "index template verl-kit-state",
    ]
    assert states(first) == ["created"] * 5
    assert states(run(server, wanted())) == ["kept"] * 5


def test_a_new_index_gets_the_kits_mapping_and_the_operators_settings(server: Elasticsearch):
    run(server, wanted())
    server.cluster.put_component_template(name="verl@custom", body=OPERATORS)
    server.indices.create(index=INDEX)
    settings = server.indices.get_settings(index=INDEX, flat_settings=True)[INDEX]["settings"]
    assert (settings["index.mode"], settings["index.number_of_shards"]) == ("logsdb", "3")
    assert server.indices.get_mapping(index=INDEX)[INDEX]["mappings"]["dynamic"] == "false"


def test_the_operators_component_is_never_touched(server: Elasticsearch):
    run(server, wanted())
    assert not server.cluster.exists_component_template(name="verl@custom")
    server.cluster.put_component_template(name="verl@custom", body=OPERATORS)
    assert states(run(server, wanted(), overwrite=True)) == ["kept"] * 5
    found = server.cluster.get_component_template(name="verl@custom")["component_templates"]
    assert found[0]["component_template"] == OPERATORS


def test_what_the_kit_wrote_itself_is_updated_and_the_diff_says_how(server: Elasticsearch):
    run(server, wanted(expected_documents_per_day=2_000_000_000))
    rows = run(server, wanted())
    assert states(rows) == ["updated", "kept", "kept", "kept", "kept"]
    assert '-      "index.number_of_shards": "4",\n+      "index.number_of_shards": "1",' in rows["verl@kit"].diff
    assert states(run(server, wanted())) == ["kept"] * 5


def test_an_older_version_of_the_kit_is_updated_and_both_versions_are_told(server: Elasticsearch):
    run(server, [with_version(template, "0.0.1") for template in wanted()])
    rows = run(server, wanted())
    assert states(rows) == ["updated"] * 5
    assert (rows["verl"].why, rows["verl"].versions) == ("", f"0.0.1 -> {__version__}")
    assert rows["verl"].news == ("setting index.refresh_interval: 7s -> none",)


def test_a_newer_version_of_the_kit_is_not_taken_back_until_it_may_be_overwritten(server: Elasticsearch):
    run(server, [with_version(template, "99.10.0") for template in wanted()])
    rows = run(server, wanted())
    assert states(rows) == ["differs"] * 5
    assert rows["verl"].why == f"written by verl-ingest 99.10.0, this is {__version__}"
    assert rows["verl"].is_newer
    assert states(run(server, wanted(), overwrite=True)) == ["updated"] * 5
    assert states(run(server, wanted())) == ["kept"] * 5


def test_a_newer_kit_is_named_without_its_templates_line_by_line(server: Elasticsearch, ask: Callable[..., Outcome]):
    run(server, [with_version(template, "99.10.0") for template in wanted()])
    done = ask("apply")
    assert f"index template verl: differs (written by verl-ingest 99.10.0, this is {__version__})\n" in done.out
    assert "--- on the server" not in done.out
    assert (done.code, done.err) == (
        1,
        "error: Nothing was written to Elasticsearch, because what stands there was written by verl-ingest 99.10.0, "
        f"this is {__version__}; use that version, or go back to this one with --overwrite.\n",
    )


def test_a_load_says_that_the_templates_are_an_older_kits(server: Elasticsearch):
    run(server, [with_version(template, "0.0.1") for template in wanted()])
    assert apply.stale(server, Settings()) == (
        f"The server's index templates are of verl-ingest 0.0.1 (this is {__version__}); run `verl-ingest apply`."
    )
    run(server, wanted(expected_documents_per_day=2_000_000_000))
    assert apply.stale(server, Settings()) == ""


def test_a_change_by_hand_is_refused_until_it_may_be_overwritten(server: Elasticsearch):
    run(server, wanted())
    changed = copy.deepcopy(index_template(server, "verl"))
    changed["priority"] = 150
    server.indices.put_index_template(name="verl", body=changed)
    rows = run(server, wanted())
    assert states(rows) == ["kept", "differs", "kept", "kept", "kept"]
    assert rows["verl"].why.startswith("changed by hand after verl-ingest ")
    assert '-  "priority": 150,\n+  "priority": 200,' in rows["verl"].diff
    assert index_template(server, "verl")["priority"] == 150
    assert states(run(server, wanted(), overwrite=True)) == ["kept", "updated", "kept", "kept", "kept"]
    assert index_template(server, "verl")["priority"] == 200


def test_a_template_of_another_origin_under_the_kits_name_is_refused(server: Elasticsearch):
    server.indices.put_index_template(name="verl", index_patterns=["verl-*"])
    rows = run(server, wanted())
    assert (rows["verl"].state, rows["verl"].why) == ("differs", "not written by verl-ingest")
    assert "by which what is loaded now can't be searched" in apply.stale(server, Settings())


def test_the_kits_own_content_without_its_mark_is_refused_too(server: Elasticsearch):
    run(server, wanted())
    unmarked = {key: value for key, value in index_template(server, "verl").items() if key != "_meta"}
    server.indices.put_index_template(name="verl", body=unmarked)
    assert run(server, wanted())["verl"].why == "not written by verl-ingest"


@pytest.mark.parametrize(
    ("pattern", "priority"),
    [("verl-*", 300), ("verl-2*", 201), ("ver*", 300), ("*", 999), ("verl-2025*", 200), ("verl-s*", 201)],
)
def test_a_template_that_would_take_the_kits_indices_is_named(server: Elasticsearch, pattern: str, priority: int):
    server.indices.put_index_template(name=RIVAL, index_patterns=["other", pattern], priority=priority)
    with pytest.raises(StoreError, match=f"index template {RIVAL} .* claims the same indices as the kit's verl"):
        apply.compare(server, wanted())


@pytest.mark.parametrize(("pattern", "priority"), [("verl-*", 100), ("verl-archive-*", 300), ("verlauf-*", 200)])
def test_a_template_that_leaves_the_kits_indices_alone_is_no_rival(server: Elasticsearch, pattern: str, priority: int):
    server.indices.put_index_template(name=RIVAL, index_patterns=[pattern], priority=priority)
    assert states(run(server, wanted())) == ["created"] * 5


def test_a_load_needs_the_templates(server: Elasticsearch):
    with pytest.raises(StoreError, match=r"run `verl-ingest apply` first\.$"):
        apply.require(server)
    run(server, wanted())
    apply.require(server)


def test_an_index_of_before_the_templates_is_named(server: Elasticsearch, ask: Callable[..., Outcome]):
    server.index(index=INDEX, document={"run_id": "apply-early", "@timestamp": "1999-11-30T00:00:00Z"}, refresh=True)
    run(server, wanted())
    assert INDEX in apply.misshapen(server)
    sentence = (
        f"Index {INDEX} was made without the kit's templates; run `verl-ingest apply`, delete that index "
        f"(DELETE {INDEX}), then load or `audit --repair` its files again."
    )
    with pytest.raises(StoreError) as failed, client.explained(Settings()):
        ElasticStore(server).run_ids("apply-early")
    assert str(failed.value) == sentence
    assert ask("apply").err == f"{sentence}\n"
    server.indices.delete(index=INDEX)
    server.indices.create(index=INDEX)
    assert INDEX not in apply.misshapen(server)


def with_version(template: Template, version: str) -> Template:
    """Return the template as another version of the kit would write it."""
    body = {key: value for key, value in template.body.items() if key != "_meta"}
    body["template"] = copy.deepcopy(body["template"])
    body["template"].setdefault("settings", {})["index.refresh_interval"] = "7s"
    body = signed(body)
    body["_meta"]["version"] = version
    return Template(template.kind, template.name, body)
