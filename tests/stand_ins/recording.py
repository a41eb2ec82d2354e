"""What the stand-ins share: a server that keeps each request and gives its answer."""

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any  # text as it is, the rest as JSON
    headers: tuple[tuple[str, str], ...] = ()


class Recording:
    """A server; subclasses `answer`. `overrides` maps beginnings of requests to answers that go before theirs."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.overrides: dict[str, Answer] = {}
        self.delay_s = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                outer.requests.append(request)
                time.sleep(outer.delay_s)
                override = next((a for begin, a in outer.overrides.items() if str(request).startswith(begin)), None)
                answer = override or outer.answer(request)
                text = (answer.body if isinstance(answer.body, str) else json.dumps(answer.body)).encode()
                self.send_response(answer.status)
                for name, value in (*answer.headers, ("content-length", str(len(text)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, request: Request) -> Answer:
        raise NotImplementedError
