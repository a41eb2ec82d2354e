"""A proxy before the server that refuses: whole `_bulk` requests, or single items of them, with 429 and 503.

A refused item is withheld from the server and has its place in the answer, as the server itself answers when one of
its shards is overloaded or not there.
"""

import gzip
import http.client
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any
from urllib.parse import urlsplit

import orjson

TIMEOUT_S = 120
ERRORS = {
    429: {"type": "es_rejected_execution_exception", "reason": "rejected execution of coordinating operation"},
    503: {"type": "unavailable_shards_exception", "reason": "primary shard is not active"},
}
_ONE_HOP = {"connection", "content-length", "content-encoding", "transfer-encoding", "host", "accept-encoding"}


@dataclass
class Refusals:
    """What share of requests and of the items in the others is refused; which documents that hit, and which got in."""

    random: Random
    requests: float = 0.0
    items: float = 0.0
    refused_requests: int = 0
    refused_items: int = 0
    withheld: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def status(self) -> int | None:
        """Return the status that refuses a request, None where it is let through."""
        with self.lock:
            if self.random.random() >= self.requests:
                return None
            self.refused_requests += 1
            return self.random.choice(list(ERRORS))

    def of_items(self, ids: list[str]) -> dict[int, int]:
        """Return position -> status of the items that are refused."""
        with self.lock:
            chosen = [n for n in range(len(ids)) if self.random.random() < self.items]
            self.refused_items += len(chosen)
            self.withheld.update(ids[n] for n in chosen)
            return {n: self.random.choice(list(ERRORS)) for n in chosen}

    def note(self, items: list[dict[str, Any]]) -> None:
        """Remember which documents the server took."""
        with self.lock:
            self.accepted.update(item["index"]["_id"] for item in items if item["index"]["status"] in (200, 201))

    @property
    def lost(self) -> set[str]:
        """The ids of documents that were withheld and never came again."""
        with self.lock:
            return self.withheld - self.accepted


@contextmanager
def before(url: str, refusals: Refusals) -> Iterator[str]:
    """Run a proxy before the server at `url` while the block lasts; yield its address."""
    server = _Server(("127.0.0.1", 0), _handler(urlsplit(url).netloc, refusals))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless a killed agent broke off its connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _handler(netloc: str, refusals: Refusals) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if not urlsplit(self.path).path.endswith("/_bulk"):
                self._answer(*self._forward(body))
            elif status := refusals.status():
                self._answer(status, orjson.dumps({"error": ERRORS[status], "status": status}))
            else:
                self._answer(*self._bulk(body))

        def _bulk(self, body: bytes) -> tuple[int, bytes]:
            lines = body.split(b"\n")
            actions = [orjson.loads(line)["index"] for line in lines[:-1:2]]
            refused = refusals.of_items([action["_id"] for action in actions])
            kept = b"".join(
                b"%b\n%b\n" % (lines[2 * n], lines[2 * n + 1]) for n in range(len(actions)) if n not in refused
            )
            if not kept:
                answer = {"errors": True, "took": 0, "items": []}
            else:
                status, text = self._forward(kept)
                if status != 200:
                    return status, text
                answer = orjson.loads(text)
            taken = iter(answer["items"])
            answer["items"] = [
                _item(actions[n], refused[n]) if n in refused else next(taken) for n in range(len(actions))
            ]
            answer["errors"] = answer["errors"] or bool(refused)
            refusals.note(answer["items"])
            return 200, orjson.dumps(answer)

        def _forward(self, body: bytes) -> tuple[int, bytes]:
            """Return the server's answer; that of a gateway where it is away."""
            connection = http.client.HTTPConnection(netloc, timeout=TIMEOUT_S)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _ONE_HOP}
            try:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                return 502, b""
            finally:
                connection.close()

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def _item(action: dict[str, str], status: int) -> dict[str, Any]:
    return {"index": {"_index": action["_index"], "_id": action["_id"], "status": status, "error": ERRORS[status]}}
