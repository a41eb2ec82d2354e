"""Real services for the tests: one Elasticsearch a session, Fluent Bit where there is one."""

import os
import time
from collections.abc import Iterator

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests import secured as secured_server
from tests.browser import chromium, complaints, service, visit  # noqa: F401 (fixtures)
from tests.command import ask, command  # noqa: F401 (fixtures)
from tests.demo_store import context_of, demo, demo_logs, demo_with_console, store, templated, write  # noqa: F401 (fixtures)
from tests.kubernetes import cluster  # noqa: F401 (fixture)
from tests.old_days import fill_day, in_days, own_days  # noqa: F401 (fixtures)
from tests.pages import view_of  # noqa: F401 (fixture)
from tests.secured import Secured
from tests.serving import get, service_settings  # noqa: F401 (fixtures)
from tests.stack import checkout  # noqa: F401 (fixture)
from tests.summarised import summarise  # noqa: F401 (fixture)
from verl_ingest.edge import trial
from verl_ingest.local import distribution
from verl_ingest.local import elasticsearch as local_elasticsearch

os.environ["TZ"] = "Etc/GMT+2"  # fixed, so that results don't vary with the machine, and not UTC on purpose
time.tzset()

ES_VERSION = os.environ.get("VERL_TEST_ES_VERSION", distribution.DEFAULT_VERSION)
ES_URL = os.environ.get("ELASTICSEARCH_URL")
FLUENT_BIT = trial.find(os.environ)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "server: the result may depend on Elasticsearch's version (set by the fixture)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "elasticsearch_url" in item.fixturenames:
            item.add_marker("server")


def pytest_report_header() -> list[str]:
    return [f"elasticsearch: {ES_URL or ES_VERSION}", f"fluent-bit: {FLUENT_BIT or 'none'}"]


@pytest.fixture(scope="session")
def elasticsearch_url() -> Iterator[str]:
    """Address of ELASTICSEARCH_URL, else of a fresh local server of version VERL_TEST_ES_VERSION."""
    if ES_URL:
        yield ES_URL
        return
    with local_elasticsearch.running(ES_VERSION) as server:
        yield server.url


@pytest.fixture(scope="session")
def elasticsearch(elasticsearch_url: str) -> Iterator[Elasticsearch]:
    """Client of the session's server."""
    with Elasticsearch(elasticsearch_url, request_timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server of its own, with security on, that tests may make ill, and leave with other templates."""
    if ES_URL:
        pytest.skip("needs a server of its own with security on, and ELASTICSEARCH_URL names another")
    with secured_server.running(ES_VERSION, tmp_path_factory.mktemp("tls")) as server:
        yield server


@pytest.fixture(scope="session")
def fluent_bit() -> str:
    """Path of the Fluent Bit binary; skips the test where there is none."""
    if FLUENT_BIT is None:
        pytest.skip(fluentbit.MISSING)
    return FLUENT_BIT
