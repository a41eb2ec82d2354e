"""The doctor's checks of Kibana and Grafana (stand-ins) and of the kit's own service, really listening."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.serving import listening
from tests.stand_ins.grafana import TOKEN, Grafana
from tests.stand_ins.kibana import Kibana
from tests.test_lag import web_server
from verl_ingest.checks import links
from verl_ingest.checks.check import Check
from verl_ingest.index import client
from verl_ingest.install import grafana, kibana
from verl_ingest.kibana import objects
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.settings import Settings

NOWHERE = "http://127.0.0.1:9"


def look(settings: Settings, **how: Any) -> dict[str, Check]:
    return {check.name: check for check in links.check(settings, **how)}


def test_what_is_not_set_is_not_missed() -> None:
    found = look(Settings())
    assert {name: check.verdict for name, check in found.items()} == dict.fromkeys(
        (links.KIBANA, links.GRAFANA, links.SERVICE), "fine"
    )
    assert found["Kibana"].found == "Not used: kibana_url is not set."


class TestKibana:
    @pytest.fixture
    def server(self) -> Iterator[Kibana]:
        with Kibana() as server:
            yield server

    def test_nothing_is_there_then_all_then_one_is_changed(self, server: Kibana) -> None:
        settings = Settings(kibana_url=server.url)
        found = look(settings)
        assert (found["Kibana"].verdict, found["Kibana's assets"].verdict) == ("fine", "watch")
        assert found["Kibana's assets"].found == "6 assets (data view verl, ...) are not there."
        assert found["Kibana's assets"].remedy == "run `verl-ingest apply`"
        found = look(settings, before_apply=True)["Kibana's assets"]
        assert found == Check("Kibana's assets", "fine", "6 assets (data view verl, ...) are to be created.")

        with kibana.connect(settings) as connected:
            kibana.write(connected, kibana.compare(connected, objects.objects(settings)))
        found = look(settings)["Kibana's assets"]
        assert found == Check("Kibana's assets", "fine", "6 assets as the kit wants them.")

        stored = server.stored["default"]["search", "verl-warnings"]
        stored["attributes"]["title"] = "mine"
        found = look(settings)["Kibana's assets"]
        assert found.verdict == "watch"
        assert found.found.startswith("Saved search verl-warnings is changed by hand")
        assert look(settings, before_apply=True)["Kibana's assets"].verdict == "wrong"
        assert look(settings, before_apply=True, overwrite=True)["Kibana's assets"].verdict == "fine"

    def test_away(self) -> None:
        found = look(Settings(kibana_url=NOWHERE))
        assert found["Kibana"] == Check(
            "Kibana",
            "wrong",
            f"Kibana at {NOWHERE} can't be reached (Connection refused).",
            "start it, or mend kibana_url",
        )
        assert found["Grafana"].verdict == "fine"

    def test_too_old(self) -> None:
        with Kibana("8.12.0") as server:
            found = look(Settings(kibana_url=server.url))
        assert (found["Kibana"].verdict, "is 8.12.0" in found["Kibana"].found) == ("wrong", True)


class TestGrafana:
    @pytest.fixture
    def server(self) -> Iterator[Grafana]:
        with Grafana() as server:
            yield server

    def test_nothing_is_there_then_all_then_one_is_stale(self, server: Grafana) -> None:
        settings = Settings(grafana_url=server.url, grafana={"token": TOKEN}, service_url=NOWHERE)
        found = look(settings)
        assert (found["Grafana"].verdict, found["Grafana's assets"].verdict) == ("fine", "watch")
        with grafana.connect(settings) as connected:
            grafana.write(connected, grafana.compare(connected, settings))
        assert look(settings)["Grafana's assets"].verdict == "fine"
        moved = settings.model_copy(update={"service_url": "http://kit.example"})
        found = look(moved)["Grafana's assets"]
        assert (found.verdict, "other settings" in found.found) == ("watch", True)

    def test_without_a_token_the_assets_are_unknown(self, server: Grafana) -> None:
        found = look(Settings(grafana_url=server.url))
        assert (found["Grafana"].verdict, found["Grafana's assets"].verdict) == ("fine", "unknown")
        assert found["Grafana's assets"].remedy == "set VERL_INGEST_GRAFANA__TOKEN"

    def test_a_token_that_is_not_taken(self, server: Grafana) -> None:
        found = look(Settings(grafana_url=server.url, grafana={"token": "other"}))
        assert found["Grafana"].verdict == "wrong"
        assert found["Grafana"].found.endswith("does not accept the login.")


class Elsewhere(ElasticStore):
    """An Elasticsearch that has no run, as far as the list of runs goes."""

    def runs(self) -> list:
        return []


@contextmanager
def service(settings: Settings, store: ElasticStore, *, hosts: set[str] | None = None) -> Iterator[Settings]:
    """Yield the settings of those who ask the service."""
    with listening(settings, store, hosts=hosts) as port:
        yield settings.model_copy(update={"service_url": f"http://127.0.0.1:{port}"})


@pytest.mark.server
@pytest.mark.usefixtures("demo")
class TestService:
    @pytest.fixture
    def settings(self, elasticsearch_url: str) -> Settings:
        return Settings(elasticsearch_url=elasticsearch_url, service={"username": "ada", "password": "secret-word"})

    def test_well(self, settings: Settings, store: ElasticStore) -> None:
        with service(settings, store) as asked:
            found = look(asked)["service"]
        assert found == Check("service", "fine", f"It answers at {asked.service_url}, from the same Elasticsearch.")

    def test_a_login_that_it_does_not_take(self, settings: Settings, store: ElasticStore) -> None:
        with service(settings, store) as asked:
            other = asked.service.model_copy(update={"username": "bob"})
            found = look(asked.model_copy(update={"service": other}))["service"]
        assert (found.verdict, "does not accept the login" in found.found) == ("wrong", True)

    def test_it_asks_another_elasticsearch(self, settings: Settings, templated) -> None:
        with service(settings, Elsewhere(templated)) as asked:
            found = look(asked)["service"]
        assert (found.verdict, "does not know the newest run" in found.found) == ("wrong", True)
        assert found.remedy == "start it with the ELASTICSEARCH_URL that is used here"

    def test_its_elasticsearch_is_away(self, settings: Settings) -> None:
        of_service = settings.model_copy(update={"elasticsearch_url": NOWHERE})
        with client.connect(of_service) as nothing, service(of_service, ElasticStore(nothing)) as asked:
            found = look(asked.model_copy(update={"elasticsearch_url": settings.elasticsearch_url}))["service"]
        assert found.verdict == "wrong"
        assert f"Elasticsearch at {NOWHERE} can't be reached" in found.found
        assert found.remedy == "start it, or set ELASTICSEARCH_URL"

    def test_ours_is_away(self, settings: Settings, store: ElasticStore) -> None:
        with service(settings, store) as asked:
            found = look(asked.model_copy(update={"elasticsearch_url": NOWHERE}))["service"]
        assert (found.verdict, found.found) == ("fine", f"It answers at {asked.service_url}.")


def test_something_else_at_the_services_address() -> None:
    with web_server(200) as port:
        found = look(Settings(service_url=f"http://127.0.0.1:{port}"))["service"]
    assert (found.verdict, found.remedy) == ("wrong", "mend service_url")


def test_a_service_that_is_away() -> None:
    assert look(Settings(service_url=NOWHERE))["service"].remedy == "start it, or mend service_url"
