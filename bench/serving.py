"""The context of a step as the service answers it in JSON, against the bare searches that it needs."""

import http.client
import socket
import threading
from typing import Any

import orjson
import uvicorn
from elasticsearch import Elasticsearch

from bench import asking
from verl_ingest.links import page
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.serve import app
from verl_ingest.settings import Settings


def measure(client: Elasticsearch, run: str, *, last_step: int) -> dict[str, float]:
    """Return what `asking.timed` does, of requests to a service of this process."""
    server = uvicorn.Server(app.config(app.create(Settings.model_construct(), ElasticStore(client))))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        connection = http.client.HTTPConnection(*listener.getsockname())

        def ask(number: int) -> dict[str, Any]:
            connection.request("GET", page.step(page.API, run, number))
            return orjson.loads(connection.getresponse().read())

        try:
            return asking.timed(client, ask, last_step=last_step)
        finally:
            connection.close()
            server.should_exit = True
            thread.join()
