"""The service, really listening, and a client that sends paths exactly as they are given."""

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from tests.waiting import wait_for
from verl_ingest.query.store import Store
from verl_ingest.serve import app
from verl_ingest.settings import Settings


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def location(self) -> str:
        return self.headers["location"]

    def json(self) -> Any:
        return json.loads(self.text)


Get = Callable[..., Answer]


@contextmanager
def listening(settings: Settings, store: Store, *, hosts: set[str] | None = None) -> Iterator[int]:
    """Serve the pages on a free port of loopback, which is yielded."""
    service = app.create(settings, store, hosts=hosts)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(app.config(service))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_for(lambda: server.started, timeout=30, what="start of the service")
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(settings: Settings, store: Store, *, hosts: set[str] | None = None) -> Iterator[Get]:
    """Serve the pages; what is yielded gets a path."""
    with listening(settings, store, hosts=hosts) as port:
        yield lambda path, method="GET", **headers: _request(port, method, path, headers)


def _request(port: int, method: str, path: str, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, text)
    finally:
        connection.close()


@pytest.fixture(scope="session")
def service_settings(elasticsearch_url: str) -> Settings:
    return Settings(
        elasticsearch_url=elasticsearch_url,
        service_url="https://kit.example/verl",
        kibana_url="https://kb.example",
        grafana_url="https://g.example/g",
    )


@pytest.fixture(scope="session")
def get(service_settings: Settings, store: Store) -> Iterator[Get]:
    """Get a path of the service."""
    with served(service_settings, store) as get_:
        yield get_
