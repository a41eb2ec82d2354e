"""ILM: what the policy does and does not, how `apply` brings it, and that a server without ILM needs none of it."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests.stand_ins.lifecycle import WithLifecycle
from tests.stand_ins.recording import Answer
from verl_ingest.errors import StoreError
from verl_ingest.index import apply, client, lifecycle
from verl_ingest.index.mappings import signed
from verl_ingest.settings import Settings

NAMES = ["ILM policy verl", "component template verl@lifecycle"]


@pytest.fixture
def with_lifecycle(templated: Elasticsearch, elasticsearch_url: str) -> Iterator[WithLifecycle]:
    with WithLifecycle(elasticsearch_url) as server:
        yield server


def rows(url: str, *, overwrite: bool = False) -> dict[str, Any]:
    """Compare and write the lifecycle's assets as `apply` does."""
    with Elasticsearch(url) as server:
        found = apply.compare(server, lifecycle.assets(), overwrite=overwrite)
        apply.write(server, found)
    return {row.name: row for row in found}


def test_the_policy_merges_and_neither_deletes_nor_closes_to_writing():
    policy = lifecycle.policy()
    assert list(policy["phases"]) == ["hot", "warm"]
    actions = [action for phase in policy["phases"].values() for action in phase["actions"]]
    assert actions == ["forcemerge"]
    assert "write" not in json.dumps(policy) and "read" not in json.dumps(policy)
    assert "index_codec" not in policy["phases"]["warm"]["actions"]["forcemerge"]  # another codec would close the index


def test_daily_indices_have_the_policy_unless_the_operator_has_another():
    built = {template.name: template.body for template in apply.wanted(Settings())}
    for name in ("verl", "verl-samples"):
        assert built[name]["composed_of"] == ["verl@kit", "verl@lifecycle", "verl@custom"]
        assert built[name]["ignore_missing_component_templates"] == ["verl@lifecycle", "verl@custom"]
    assert built["verl@lifecycle"]["template"] == {"settings": {"index.lifecycle.name": "verl"}}
    for name in ("verl-steps", "verl-kit-state"):  # they are not daily
        assert "verl@lifecycle" not in built[name]["composed_of"]


def test_a_server_with_ilm_gets_policy_and_component_once(with_lifecycle: WithLifecycle):
    first = rows(with_lifecycle.url)
    assert [(name, row.state) for name, row in first.items()] == [(name, "created") for name in NAMES]
    assert with_lifecycle.policies["verl"]["policy"]["phases"] == lifecycle.policy()["phases"]
    assert [row.state for row in rows(with_lifecycle.url).values()] == ["kept", "kept"]
    assert with_lifecycle.policies["verl"]["version"] == 1


def test_a_change_by_hand_is_refused_until_it_may_be_overwritten(with_lifecycle: WithLifecycle):
    rows(with_lifecycle.url)
    policy = with_lifecycle.policies["verl"]["policy"]
    policy["phases"]["delete"] = {"min_age": "30d", "actions": {"delete": {"delete_searchable_snapshot": True}}}
    row = rows(with_lifecycle.url)[NAMES[0]]
    assert (row.state, row.why.partition(" after ")[0]) == ("differs", "changed by hand")
    assert '-    "delete": {' in row.diff
    assert "delete" in with_lifecycle.policies["verl"]["policy"]["phases"]
    assert rows(with_lifecycle.url, overwrite=True)[NAMES[0]].state == "updated"
    assert list(with_lifecycle.policies["verl"]["policy"]["phases"]) == ["hot", "warm"]


def test_a_policy_of_another_origin_under_the_kits_name_is_refused(with_lifecycle: WithLifecycle):
    other = copy.deepcopy(lifecycle.policy())
    with_lifecycle.policies["verl"] = {"version": 3, "modified_date": "x", "policy": other}
    row = rows(with_lifecycle.url)[NAMES[0]]
    assert (row.state, row.why) == ("differs", "not written by verl-ingest")


def test_an_older_policy_of_the_kit_is_updated(with_lifecycle: WithLifecycle):
    older = copy.deepcopy(lifecycle.policy())
    older["phases"]["warm"]["min_age"] = "7d"
    with_lifecycle.policies["verl"] = {"version": 1, "modified_date": "x", "policy": signed(older)}
    row = rows(with_lifecycle.url)[NAMES[0]]
    assert row.state == "updated" and '-      "min_age": "7d"\n+      "min_age": "2d"' in row.diff


def test_a_login_that_may_not_see_policies_is_told_what_to_grant(with_lifecycle: WithLifecycle):
    reason = (
        "action [cluster:admin/ilm/get] is unauthorized for user [u] with effective roles [r], this action is granted "
        "by the cluster privileges [read_ilm,manage_ilm,all]"
    )
    cause = {"type": "security_exception", "reason": reason}
    body = {"error": {"root_cause": [cause], **cause}, "status": 403}
    headers = (("x-elastic-product", "Elasticsearch"), ("content-type", "application/json"))
    with_lifecycle.overrides["GET /_ilm"] = Answer(403, body, headers)
    told = pytest.raises(StoreError, match=r"does not let user .* grant the cluster privilege read_ilm")
    with told, client.explained(Settings(elasticsearch_url=with_lifecycle.url)):
        rows(with_lifecycle.url)


def test_a_server_without_ilm_has_the_same_templates_and_no_lifecycle(templated: Elasticsearch):
    assert lifecycle.read(templated) is None
    assert apply.compare(templated, lifecycle.assets()) == []
    found = apply.compare(templated, apply.wanted(Settings()))
    assert not {row.name for row in found} & set(NAMES)
    assert "index template verl" in {row.name for row in found}
