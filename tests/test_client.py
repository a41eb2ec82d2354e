"""The client's errors: a real server with security on, real refusals, and sentences for the rest."""

import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import elastic_transport
import pytest
from elastic_transport import ApiResponseMeta, HttpHeaders, NodeConfig
from elasticsearch import ApiError, Elasticsearch, helpers

from tests.conftest import ES_URL, ES_VERSION
from tests.documents import index_of, record
from verl_ingest.cli import summarize
from verl_ingest.errors import KitError, SettingsError, StoreError
from verl_ingest.index import apply, client
from verl_ingest.local import elasticsearch as local
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.store import Key, Segment
from verl_ingest.settings import Settings

ADMIN = {"elasticsearch_username": "kit-admin", "elasticsearch_password": "right-password"}
READER = {"elasticsearch_username": "kit-reader", "elasticsearch_password": "right-password"}
ROLES = {"verl-reader": {"indices": [{"names": ["verl-*"], "privileges": ["read"]}]}}
WHERE = "http://localhost:9200"


@pytest.fixture
def without_shard(elasticsearch: Elasticsearch) -> Iterator[str]:
    """Name of an index whose shard no node may have."""
    name = "client-without-shard"
    nowhere = {"index.routing.allocation.require._name": "nobody"}
    elasticsearch.indices.create(index=name, settings=nowhere, wait_for_active_shards="0")
    yield name
    elasticsearch.indices.delete(index=name)


SEARCHES = {
    "search": lambda server, index: server.search(index=index, allow_partial_search_results=False),
    "snapshot": lambda server, index: server.open_point_in_time(index=index, keep_alive="1s"),
    "several": lambda server, index: server.msearch(searches=[{"index": index}, {}])["responses"][0]["hits"],
}


@pytest.mark.server
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_waits_for_the_shard_of_a_new_index(
    without_shard: str, elasticsearch: Elasticsearch, elasticsearch_url: str, monkeypatch: pytest.MonkeyPatch, search
):
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            anywhere = {"index.routing.allocation.require._name": None}
            elasticsearch.indices.put_settings(index=without_shard, settings=anywhere)
            elasticsearch.cluster.health(index=without_shard, wait_for_status="yellow", timeout="60s")

    monkeypatch.setattr(client, "sleep", wait)
    with client.connect(Settings(elasticsearch_url=elasticsearch_url)) as server:
        assert search(server, without_shard)
    assert waits == list(client.SHARDS_WAITS_S[:2])


@pytest.mark.server
def test_a_shard_that_stays_away_is_named(without_shard: str, elasticsearch_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "SHARDS_WAITS_S", (0,))
    sentence = error_of(elasticsearch_url, lambda server: SEARCHES["search"](server, without_shard))
    assert sentence == (
        "Elasticsearch at SERVER can't read all of its data now (Search rejected due to missing shards "
        f"[[{without_shard}][0]]); a node of it is away or just starting: see its GET _cluster/health, "
        "and try again when that is not red."
    )


@pytest.fixture(scope="module")
def secured() -> Iterator[str]:
    """Address of a server that wants a login."""
    if ES_URL:
        pytest.skip("needs a server of its own with security on, and ELASTICSEARCH_URL names another")
    users = [
        local.User("kit-admin", "right-password", ("superuser",)),
        local.User("kit-reader", "right-password", ("verl-reader",)),
    ]
    with local.running(ES_VERSION, users=users, roles=ROLES) as server:
        yield server.url


def nodes(server: Elasticsearch) -> Any:
    return server.nodes.info()


def error_of(url: str, request: Callable[[Elasticsearch], Any] = nodes, **settings: Any) -> str:
    """Return the sentence for a request that fails, its address written as SERVER."""
    chosen = Settings(elasticsearch_url=url, **settings)
    with pytest.raises(KitError) as failed, client.explained(chosen), client.connect(chosen) as server:
        request(server)
    return str(failed.value).replace(url, "SERVER")


@pytest.mark.server
def test_bulk_several_searches_and_refusals_speak_the_same_json(templated, elasticsearch_url: str):
    settings = Settings(elasticsearch_url=elasticsearch_url)
    sent = {"@timestamp": "2026-05-28T20:26:40.000000001Z", "extra": {"名": "a\u2028\\"}, "value": 1e-300}
    no_date = {"query": {"range": {"@timestamp": {"gte": "no date"}}}}
    index = "verl-1999.01.01"
    with client.connect(settings) as server:
        wrote, failed = helpers.bulk(
            server,
            [{"_index": index, "_id": "1", "_source": sent}, {"_index": index, "_source": {}}],
            refresh=True,
            raise_on_error=False,
        )
        assert (wrote, [error["index"]["status"] for error in failed]) == (1, [400])
        found = server.msearch(index=index, searches=[{}, {"query": {"match_all": {}}}, {}, no_date])
        one, other = found["responses"]
        assert one["hits"]["hits"][0]["_source"] == sent
        assert other["error"]["root_cause"][0]["type"] == "parse_exception"
        with pytest.raises(StoreError, match="failed to parse date field"), client.explained(settings):
            server.search(index=index, body=no_date)
        server.indices.delete(index=index)


@pytest.mark.server
def test_a_right_login_works(secured: str):
    settings = Settings(elasticsearch_url=secured, **ADMIN)
    with client.explained(settings), client.connect(settings) as server:
        assert len(nodes(server)["nodes"]) == 1


@pytest.mark.server
@pytest.mark.parametrize(
    ("login", "sentence"),
    [
        (
            {},
            "Elasticsearch at SERVER wants a login; "
            "set ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, or ELASTICSEARCH_API_KEY.",
        ),
        (
            {**ADMIN, "elasticsearch_password": "wrong-password"},
            "Elasticsearch at SERVER does not accept the password of kit-admin; "
            "mend ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD.",
        ),
        (
            {"elasticsearch_api_key": "bm90OmFrZXk="},
            "Elasticsearch at SERVER does not accept the API key; set ELASTICSEARCH_API_KEY to a valid one.",
        ),
    ],
    ids=["none", "wrong_password", "wrong_api_key"],
)
def test_a_wrong_login_is_explained(secured: str, login: dict[str, str], sentence: str):
    assert error_of(secured, **login) == sentence


@pytest.mark.server
@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (
            lambda server: server.indices.put_index_template(name="verl", index_patterns=["verl-*"]),
            "change index templates; give it the role verl_admin, or grant the cluster privilege "
            "manage_index_templates (for indices:admin/index_template/put).",
        ),
        (
            lambda server: server.indices.create(index="verl-1999.10.31"),
            "make indices; give it the role verl_admin, or grant the index privilege create_index on verl-1999.10.31 "
            "(for indices:admin/create).",
        ),
        (
            lambda server: server.search(index="private"),
            "read records; grant the index privilege read on private (for indices:data/read/search).",
        ),
    ],
    ids=["cluster", "index", "search"],
)
def test_a_missing_privilege_is_named(secured: str, request_: Callable[[Elasticsearch], Any], sentence: str):
    expected = f"Elasticsearch at SERVER does not let user [kit-reader] {sentence}"
    assert error_of(secured, request_, **READER) == expected


@pytest.mark.server
def test_a_full_disk_is_named_with_the_index_it_locked(secured: str):
    def write_where_the_disk_is_full(server: Elasticsearch) -> None:
        # What the server itself does to an index at its flood-stage watermark.
        server.indices.create(index="verl-1999.10.30", settings={"index.blocks.read_only_allow_delete": True})
        server.index(index="verl-1999.10.30", document={})

    assert error_of(secured, write_where_the_disk_is_full, **ADMIN) == (
        "The disk of Elasticsearch at SERVER is too full, so it locked verl-1999.10.30 against writing; "
        "delete old indices or add space, then run this again (Elasticsearch unlocks by itself)."
    )


@pytest.mark.server
def test_a_request_that_is_too_large_is_explained(secured: str):
    sentence = error_of(secured, lambda server: server.bulk(body=b"x" * (101 << 20)), **ADMIN)
    assert sentence.endswith("takes no request this large; raise its limit (http.max_content_length).")


@pytest.mark.server
def test_another_refusal_gives_the_servers_own_reason(secured: str):
    sentence = error_of(secured, lambda server: server.search(query={"nonsense": {}}), **ADMIN)
    assert sentence == "Elasticsearch at SERVER refused the request (parsing_exception): unknown query [nonsense]."


@pytest.mark.server
def test_https_to_a_server_without_tls_is_explained(secured: str):
    sentence = error_of(secured.replace("http:", "https:"), **ADMIN)
    assert sentence == "Elasticsearch at SERVER does not speak TLS; write http:// in ELASTICSEARCH_URL."


def test_who_may_not_read_or_write_summaries_does_without(secured: str):
    users = [Settings(elasticsearch_url=secured, **login) for login in (ADMIN, READER)]
    segment, loss = Segment(1, 1), Key("loss", "actor", True)
    with client.connect(users[0]) as admin:
        apply.write(admin, apply.compare(admin, apply.wanted(users[0])))
        document = record("summed", 10, step=1, rank=0, stage="actor", metrics={"loss": 0.5})
        admin.index(index=index_of(document), id=document["event_id"], document=document, refresh=True)
        assert summarize.after_load(admin, users[0], ["summed"], hidden=True) == (1, "")
    for user, summaries in zip(users, (1, 0), strict=True):
        with client.connect(user) as server, ElasticStore(server).open("summed") as run:
            assert len(run.summaries([segment])) == summaries
            assert run.history([segment], [segment], [loss]).levels[loss][1].mean == 0.5
    with client.connect(users[1]) as reader:
        document = record("summed", 10, step=1, rank=1, stage="actor", metrics={"loss": 1.5})
        with client.connect(users[0]) as admin:
            admin.index(index=index_of(document), id=document["event_id"], document=document, refresh=True)
        written, why = summarize.after_load(reader, users[1], ["summed"], hidden=True)
    assert written == 0
    assert (
        "does not let user [kit-reader] write records; give it the role verl_admin, or grant the index privilege" in why
    )


def test_a_server_that_is_down_is_named():
    with socket.socket() as unused:  # bound and not listening: the port stays free of others
        unused.bind(("127.0.0.1", 0))
        sentence = error_of(f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert sentence == (
        "Elasticsearch at SERVER can't be reached (Connection refused); start it, or set ELASTICSEARCH_URL."
    )


def test_a_host_that_does_not_exist_is_named():
    sentence = error_of("http://no-such-host.invalid:9200")
    assert sentence.startswith("Elasticsearch at SERVER can't be reached (")
    assert sentence.endswith("); start it, or set ELASTICSEARCH_URL.")


def test_a_missing_file_of_certificates_is_named(tmp_path: Path):
    with pytest.raises(SettingsError, match=r"^elasticsearch_ca_certs: there is no file .*/ca\.pem\.$"):
        client.connect(Settings(elasticsearch_url="https://es", elasticsearch_ca_certs=tmp_path / "ca.pem"))


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("http://es.example.org", 80),
        ("https://es.example.org", 443),
        ("https://es.example.org:9243", 9243),
        ("http://[::1]/es", 80),
    ],
)
def test_a_url_without_a_port_means_the_ports_of_the_web(url: str, port: int):
    (node,) = client.connect(Settings(elasticsearch_url=url)).transport.node_pool.all()
    assert node.port == port


# Failures that a healthy server can't show.


class Impostor(BaseHTTPRequestHandler):
    """Answers like a web server that knows nothing of Elasticsearch, or hangs up."""

    def do_GET(self) -> None:
        if self.path.startswith("/hangs-up"):
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def impostor() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Impostor) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_is_not_elasticsearch_is_named(impostor: str):
    assert error_of(impostor) == "What answers at SERVER is not Elasticsearch; set ELASTICSEARCH_URL."


def test_a_connection_that_is_cut_hints_at_tls(impostor: str):
    sentence = error_of(f"{impostor}/hangs-up")
    assert sentence == (
        "Elasticsearch at SERVER closed the connection; "
        "write https:// in ELASTICSEARCH_URL if it speaks TLS, or see its log."
    )


def refusal(status: int, body: Any) -> ApiError:
    node = NodeConfig("http", "localhost", 9200)
    meta = ApiResponseMeta(status=status, http_version="1.1", headers=HttpHeaders(), duration=0.0, node=node)
    return ApiError(str(body), meta=meta, body=body)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            elastic_transport.ConnectionTimeout("Connection timed out"),
            f"Elasticsearch at {WHERE} did not answer in 60 s; see its log, or try again when it is less busy.",
        ),
        (
            elastic_transport.TlsError(
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
            ),
            f"The certificate of Elasticsearch at {WHERE} is not trusted (self-signed certificate); "
            "set elasticsearch_ca_certs to the PEM file of the authority that signed it.",
        ),
        (
            elastic_transport.TlsError("[X509: NO_CERTIFICATE_OR_CRL_FOUND] no certificate or crl found"),
            f"Elasticsearch at {WHERE} can't be reached over TLS ([X509: NO_CERTIFICATE_OR_CRL_FOUND] "
            "no certificate or crl found); is elasticsearch_ca_certs the right PEM file?",
        ),
        (
            elastic_transport.SerializationError("Unable to deserialize as JSON"),
            f"Elasticsearch at {WHERE} gave an answer that can't be read (Unable to deserialize as JSON); "
            "is there a proxy in between?",
        ),
        (
            refusal(429, {"error": {"type": "circuit_breaking_exception", "reason": "Data too large"}}),
            f"Elasticsearch at {WHERE} is too busy (Data too large); try again later.",
        ),
        (
            refusal(503, {"error": {"root_cause": [{"type": "master_not_discovered_exception", "reason": None}]}}),
            f"Elasticsearch at {WHERE} is not ready (master_not_discovered_exception); "
            "see its log, or try again in a moment.",
        ),
        (
            refusal(502, "<html>Bad Gateway</html>"),
            f"Elasticsearch at {WHERE} is not ready (<html>Bad Gateway</html>); see its log, or try again in a moment.",
        ),
    ],
    ids=["timeout", "untrusted", "tls", "not_json", "busy", "no_master", "proxy"],
)
def test_other_failures_are_explained(error: Exception, sentence: str):
    with pytest.raises(StoreError) as failed, client.explained(Settings(elasticsearch_url=WHERE)):
        raise error
    assert str(failed.value) == sentence
