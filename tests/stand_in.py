"""A server of the loopback address that answers `_bulk` as told, for what a real one can't be made to say."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from elasticsearch import Elasticsearch

DISK_FULL = -429  # it comes with the status 429


def bulk_answer(*statuses: int) -> tuple[int, dict[str, Any]]:
    errors = {
        429: {"type": "es_rejected_execution_exception", "reason": "busy"},
        400: {"type": "document_parsing_exception", "reason": "no"},
        DISK_FULL: {"type": "cluster_block_exception", "reason": "blocked by: flood-stage watermark"},
    }
    items = [{"index": {"status": abs(s), **({"error": errors[s]} if s in errors else {})}} for s in statuses]
    return 200, {"errors": any(s in errors for s in statuses), "items": items}


class stand_in:
    """A server that gives these (status, body) answers in turn, as Elasticsearch does when it can't take a request."""

    def __init__(self, answers: list[tuple[int, dict[str, Any]]], *, port: int = 0) -> None:
        self.answers, self.bodies = answers, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                status, body = outer.answers.pop(0)
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("X-Elastic-Product", "Elasticsearch")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> Elasticsearch:
        self.thread.start()
        self.client = Elasticsearch(f"http://127.0.0.1:{self.server.server_port}", max_retries=0)
        return self.client

    def __exit__(self, *_: Any) -> None:
        self.client.close()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
