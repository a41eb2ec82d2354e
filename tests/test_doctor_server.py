"""The doctor's checks of Elasticsearch and of what apply brings: a real server with security on, made ill and well."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from elasticsearch import Elasticsearch

from tests.conftest import ES_VERSION
from tests.secured import NOBODY, OPERATOR, Secured, apply_templates
from tests.test_lag import web_server
from tests.waiting import wait_for
from verl_ingest.checks import assets, disk, server
from verl_ingest.checks.check import Check
from verl_ingest.checks.disk import Disk, Watermark
from verl_ingest.index import apply, mappings, roles
from verl_ingest.settings import Settings

PROBE = "verl-2199.01.01"  # the newest one, whatever else the server has
GB = 1_000_000_000


@pytest.fixture
def root(secured: Secured) -> Iterator[Elasticsearch]:
    with secured.client(OPERATOR) as connected:
        yield connected


def named(checks: Iterator[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def verdicts(checks: Iterator[Check]) -> dict[str, str]:
    return {name: check.verdict for name, check in named(checks).items()}


@pytest.fixture
def index(root: Elasticsearch) -> Iterator[str]:
    """A daily index with one record, made by the kit's templates."""
    apply_templates(root)
    root.index(index=PROBE, document={"run_id": "doctor", "@timestamp": "1999-01-01T00:00:00Z"}, refresh=True)
    yield PROBE
    root.indices.delete(index=PROBE)


@contextmanager
def setting(root: Elasticsearch, **values: Any) -> Iterator[None]:
    names = {name.replace("__", "."): value for name, value in values.items()}
    root.cluster.put_settings(persistent=names)
    try:
        yield
    finally:
        root.cluster.put_settings(persistent=dict.fromkeys(names))


@pytest.mark.server
@pytest.mark.usefixtures("index")
class TestServer:
    def test_a_well_server(self, secured: Secured) -> None:
        found = named(server.check(secured.settings(OPERATOR)))
        assert {check.verdict for check in found.values()} == {"fine"}
        assert found["server"].found == f"It answers: Elasticsearch {ES_VERSION}, 1 node."
        assert found["security"].found == f"On; the login is {OPERATOR} with superuser."
        assert found["fields"].found.endswith(f"of 8,000 fields in {PROBE}.")
        assert list(found) == ["server", "security", "privileges", "health", "disk", "shards", "fields"]

    def test_a_reader_may_look_at_all_of_it(self, secured: Secured) -> None:
        assert set(verdicts(server.check(secured.settings("verl_reader"))).values()) == {"fine"}

    def test_a_reader_may_not_apply(self, secured: Secured) -> None:
        found = named(server.check(secured.settings("verl_reader"), before_apply=True))["privileges"]
        assert found.verdict == "wrong"
        assert "manage_index_templates" in found.found
        assert found.remedy == "give the user the role verl_admin (docs/deploy/security.md)"
        assert verdicts(server.check(secured.settings(OPERATOR), before_apply=True))["privileges"] == "fine"

    @pytest.mark.parametrize("user", ["verl_writer", NOBODY])
    def test_what_a_login_may_not_see_is_unknown_and_stops_nothing(self, secured: Secured, user: str) -> None:
        found = named(server.check(secured.settings(user)))
        assert verdicts(iter(found.values())) == {
            "server": "unknown",
            "security": "fine",
            "privileges": "wrong",
            **dict.fromkeys(("health", "disk", "shards", "fields"), "unknown"),
        }
        assert found["server"].remedy == "give the user the role verl_reader"
        assert "grant the cluster privilege monitor" in found["disk"].remedy
        assert "read on verl-*" in found["privileges"].found
        assert found["fields"].found.endswith(f" does not let user [{user}] see indices.")

    def test_a_wrong_password_is_all_that_is_said(self, secured: Secured) -> None:
        [found] = server.check(secured.settings(OPERATOR, elasticsearch_password="wrong-one"))
        assert (found.name, found.verdict) == ("server", "wrong")
        assert found.found == f"Elasticsearch at {secured.url} does not accept the password of {OPERATOR}."
        assert found.remedy == "mend ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD"

    def test_a_full_disk(self, secured: Secured, root: Elasticsearch) -> None:
        mark = "cluster__routing__allocation__disk__watermark__"
        for ill, names in (("wrong", ("low", "high", "flood_stage")), ("wrong", ("low", "high")), ("watch", ("low",))):
            sizes = {mark + name: "9000tb" if name in names else "1mb" for name in ("low", "high", "flood_stage")}
            with setting(root, **sizes):
                assert verdicts(server.check(secured.settings(OPERATOR)))["disk"] == ill, names

    def test_an_index_that_a_full_disk_locked(self, secured: Secured, root: Elasticsearch, index: str) -> None:
        root.indices.put_settings(index=index, settings={"index.blocks.read_only_allow_delete": True})
        found = named(server.check(secured.settings("verl_reader")))["locked indices"]
        assert (found.verdict, found.found) == ("wrong", f"A full disk has locked {index} against writing.")

    def test_a_copy_without_a_node(self, secured: Secured, root: Elasticsearch, index: str) -> None:
        root.indices.put_settings(index=index, settings={"auto_expand_replicas": False, "number_of_replicas": 1})
        found = named(server.check(secured.settings(OPERATOR)))["health"]
        assert (found.verdict, found.found[:18]) == ("watch", "Yellow: 1 shard of")

    def test_shards_that_can_not_be_had(self, secured: Secured, root: Elasticsearch) -> None:
        nowhere = {"index.routing.allocation.require._name": "no-such-node"}
        root.indices.create(index="verl-1999.01.02", settings=nowhere, wait_for_active_shards=0)
        try:
            wait_for(lambda: root.cluster.health()["status"] == "red", timeout=30, what="a red index")
            found = named(server.check(secured.settings(OPERATOR)))["health"]
        finally:
            root.indices.delete(index="verl-1999.01.02")
        assert (found.verdict, found.found[:4]) == ("wrong", "Red:")

    def test_no_shard_is_left_for_tomorrow(self, secured: Secured, root: Elasticsearch) -> None:
        with setting(root, cluster__max_shards_per_node=2):
            found = named(server.check(secured.settings(OPERATOR)))["shards"]
        assert found.verdict == "wrong"
        assert "The next day's index can't be made." in found.found

    def test_an_index_with_too_many_fields(self, secured: Secured, root: Elasticsearch, index: str) -> None:
        def verdict_with(limit: int) -> str:
            root.indices.put_settings(index=index, settings={"index.mapping.total_fields.limit": limit})
            return verdicts(server.check(secured.settings(OPERATOR)))["fields"]

        mapping = root.indices.get_mapping(index=index)[index]["mappings"]["properties"]
        fields = server.count_fields(mapping)
        assert verdict_with(fields * 2) == "fine"
        assert verdict_with(round(fields / 0.85)) == "watch"
        assert verdict_with(fields) == "wrong"
        # as the server itself counts them: one more is refused
        root.indices.put_settings(
            index=index,
            settings={
                "index.mapping.total_fields.limit": fields + 1,
                "index.mapping.total_fields.ignore_dynamic_beyond_limit": False,
            },
        )
        at = {"@timestamp": "1999-01-01T00:00:00Z"}
        root.index(index=index, document=at | {"metrics": {"one more": 1.0}})
        with pytest.raises(Exception, match="Limit of total fields"):
            root.index(index=index, document=at | {"metrics": {"one too many": 1.0}})


@pytest.mark.server
class TestAssets:
    def test_a_server_that_apply_has_not_seen(self, secured: Secured, root: Elasticsearch) -> None:
        root.indices.delete_index_template(name="verl*")
        found = named(assets.check(secured.settings(OPERATOR)))
        assert found["templates"].verdict == "wrong"
        assert found["templates"].remedy == "run `verl-ingest apply`"
        assert found["ILM"].verdict == "fine"
        found = named(assets.check(secured.settings(OPERATOR), before_apply=True))["templates"]
        assert (found.verdict, found.found.endswith(" are to be created.")) == ("fine", True)

    @pytest.mark.usefixtures("index")
    def test_all_is_as_applied(self, secured: Secured) -> None:
        found = named(assets.check(secured.settings(OPERATOR)))
        assert {name: check.verdict for name, check in found.items()} == {
            "templates": "fine",
            "ILM": "fine",
            "roles": "unknown",  # in a file, which the server shows nobody
            "indices": "fine",
        }
        assert found["roles"].found == (
            "Role verl_writer, role verl_reader and role verl_admin are not there, unless a roles.yml has them, which "
            "the server shows to nobody."
        )
        assert found["roles"].remedy == "run `verl-ingest apply` as a superuser, where no roles.yml has them"

    @pytest.mark.usefixtures("index")
    def test_who_has_a_role_of_the_kit_need_not_see_what_is_in_it(self, secured: Secured) -> None:
        found = named(assets.check(secured.settings("verl_reader")))["roles"]
        assert (found.verdict, "verl_reader" in found.found) == ("fine", True)

    def test_an_index_of_before_a_new_field(self, secured: Secured, monkeypatch, index: str) -> None:
        newer = apply.wanted(Settings())
        kit = next(template for template in newer if template.name == mappings.KIT_COMPONENT)
        kit.body["template"]["mappings"]["properties"]["brand_new"] = {"type": "keyword"}
        monkeypatch.setattr(apply, "wanted", lambda _: newer)
        found = named(assets.check(secured.settings(OPERATOR)))["indices"]
        assert (found.verdict, index in found.found) == ("watch", True)
        assert verdicts(assets.check(secured.settings(OPERATOR), before_apply=True))["indices"] == "fine"

    @pytest.mark.parametrize(("cluster", "verdict"), [(["monitor"], "fine"), (["all"], "watch")])
    def test_roles_that_the_server_shows(self, secured: Secured, monkeypatch, cluster: list[str], verdict: str) -> None:
        shown = {role.name: role.body for role in roles.wanted()}
        shown["verl_reader"] = shown["verl_reader"] | {"cluster": cluster}
        kept = replace(apply.KINDS["role"], read=lambda _: shown)  # this server keeps none: it lacks an analyser
        monkeypatch.setitem(apply.KINDS, "role", kept)
        found = named(assets.check(secured.settings(OPERATOR)))["roles"]
        assert (found.verdict, "verl_reader" in found.found) == (verdict, verdict == "watch")

    @pytest.mark.usefixtures("index")
    def test_a_template_of_other_settings_is_stale(self, secured: Secured, root: Elasticsearch) -> None:
        other = Settings(expected_documents_per_day=5_000_000_000)
        apply.write(root, apply.compare(root, apply.wanted(other)))
        found = named(assets.check(secured.settings(OPERATOR)))["templates"]
        assert found == Check(
            "templates",
            "wrong",
            "Component template verl@kit is of another version of the kit or of other settings.",
            "run `verl-ingest apply`",
        )

    @pytest.mark.usefixtures("index")
    def test_a_template_changed_by_hand(self, secured: Secured, root: Elasticsearch) -> None:
        body = root.indices.get_index_template(name="verl")["index_templates"][0]["index_template"]
        root.indices.put_index_template(name="verl", body=dict(body) | {"priority": 199})
        found = named(assets.check(secured.settings(OPERATOR)))["templates"]
        assert found.verdict == "watch"
        assert "changed by hand" in found.found
        shown = "`verl-ingest apply --dry-run` shows the difference, "
        assert found.remedy == f"{shown}`verl-ingest apply --overwrite` takes the kit's"
        found = named(assets.check(secured.settings(OPERATOR), before_apply=True))["templates"]
        assert found.verdict == "wrong"
        assert found.remedy == f"{shown}`verl-ingest deploy --overwrite` takes the kit's"
        found = named(assets.check(secured.settings(OPERATOR), before_apply=True, overwrite=True))["templates"]
        assert found == Check("templates", "fine", "Index template verl is to be updated.")

    @pytest.mark.usefixtures("index")
    def test_a_template_of_someone_else_that_claims_the_indices(self, secured: Secured, root: Elasticsearch) -> None:
        root.indices.put_index_template(name="logs", index_patterns=["verl-*"], priority=900)
        try:
            found = named(assets.check(secured.settings(OPERATOR)))["templates"]
        finally:
            root.indices.delete_index_template(name="logs")
        assert found.verdict == "wrong"
        assert found.found.startswith("The server's index template logs (verl-*, priority 900) claims the same indices")
        assert found.remedy == "narrow its pattern, lower its priority below 200, or delete it"

    def test_an_index_that_a_first_record_shaped(self, secured: Secured, root: Elasticsearch) -> None:
        root.indices.delete_index_template(name="verl*")
        root.index(index=PROBE, document={"run_id": "doctor"}, refresh=True)
        try:
            found = named(assets.check(secured.settings(OPERATOR)))["indices"]
        finally:
            root.indices.delete(index=PROBE)
        assert (found.verdict, found.found) == ("wrong", f"Index {PROBE} was made without the kit's templates.")

    def test_who_may_not_see_templates(self, secured: Secured) -> None:
        found = named(assets.check(secured.settings(NOBODY)))
        assert (found["roles"].verdict, "read_security" in found["roles"].found) == ("unknown", True)


class TestWithoutAServer:
    def test_a_server_that_is_away(self) -> None:
        with socket.socket() as unused:  # bound and not listening
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            assert list(server.check(Settings(elasticsearch_url=url))) == [
                Check(
                    "server",
                    "wrong",
                    f"Elasticsearch at {url} can't be reached (Connection refused).",
                    "start it, or set ELASTICSEARCH_URL",
                )
            ]

    def test_something_else_that_answers(self) -> None:
        with web_server(200) as port:
            [found] = server.check(Settings(elasticsearch_url=f"http://127.0.0.1:{port}"))
        assert (found.name, found.verdict, found.remedy) == ("server", "wrong", "set ELASTICSEARCH_URL")

    @pytest.mark.parametrize(
        ("versions", "verdict"),
        [
            (["8.19.0"], "fine"),
            (["9.1.10", "9.2.0-SNAPSHOT"], "fine"),
            (["8.18.4", "9.1.10"], "wrong"),
            (["7.17.28"], "wrong"),
            (["10.0.0"], "watch"),
        ],
    )
    def test_versions(self, versions: list[str], verdict: str) -> None:
        assert server.judge_versions(versions).verdict == verdict

    @pytest.mark.parametrize(
        ("bound", "verdict"),
        [
            (["127.0.0.1:9200", "[::1]:9200"], "fine"),
            (["127.0.0.1:9200", "10.0.0.5:9200"], "watch"),
            (["[::]:9200"], "watch"),
        ],
    )
    def test_a_server_without_security(self, bound: list[str], verdict: str) -> None:
        assert server.judge_open(bound).verdict == verdict

    def test_without_any_index_there_is_no_shard_to_count(self) -> None:
        health = {"status": "green", "unassigned_shards": 0, "active_shards": 0}
        assert server.judge_health(health) == Check("health", "fine", "The kit has no index yet.")

    @pytest.mark.parametrize(
        ("shards", "verdict"), [(0, "fine"), (799, "fine"), (800, "watch"), (996, "watch"), (997, "wrong")]
    )
    def test_shards(self, shards: int, verdict: str) -> None:
        assert server.judge_shards(shards, 1_000).verdict == verdict


class TestDisk:
    MARKS: ClassVar = {
        "low": Watermark("85%", "200gb"),
        "high": Watermark("90%", "150gb"),
        "flood_stage": Watermark("95%", "100gb"),
    }

    @pytest.mark.parametrize(
        ("free", "verdict"), [(16, "fine"), (14, "watch"), (10.1, "watch"), (9.9, "wrong"), (4.9, "wrong")]
    )
    def test_the_watermarks(self, free: float, verdict: str) -> None:
        assert disk.judge([Disk("n", 100 * GB, round(free * GB))], self.MARKS).verdict == verdict

    def test_the_node_nearest_to_its_limit_counts(self) -> None:
        found = disk.judge([Disk("large", 100 * GB, 50 * GB), Disk("small", 10 * GB, GB // 4)], self.MARKS)
        assert found.found.startswith("Node small has 250.0 MB of 10.0 GB free")

    def test_of_a_large_disk_the_headroom_counts(self) -> None:
        assert disk.judge([Disk("n", 10_000 * GB, 230 * GB)], self.MARKS).verdict == "fine"
        assert disk.judge([Disk("n", 10_000 * GB, 210 * GB)], self.MARKS).verdict == "watch"

    def test_limits_as_shares_and_sizes(self) -> None:
        assert Watermark("0.9", "-1").least_free(1_000) == pytest.approx(100)
        assert Watermark("2gb", "-1").least_free(1) == 2 * 1024**3
        assert Watermark("500B", "-1").least_free(1) == 500

    def test_no_disk(self) -> None:
        assert disk.judge([], self.MARKS).verdict == "unknown"
