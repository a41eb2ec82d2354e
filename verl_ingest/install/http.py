"""Requests to Kibana and Grafana; what goes wrong with one -> one sentence with a remedy."""

import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError, SSLError

from verl_ingest.errors import KitError, SettingsError
from verl_ingest.index import client

TIMEOUT_S = 60


@dataclass(frozen=True)
class Address:
    """A server, and what to say when it can't be used.

    `name` is what it is, `setting` the one that has its `url`, `headers` log in. `login` and `privileges` end the
    sentences on a login that is not accepted, and on one that may not do what is asked.
    """

    name: str
    url: str
    setting: str
    headers: Mapping[str, str]
    login: str
    privileges: str


@dataclass(frozen=True)
class Server:
    """A server that can be asked; see `connect`."""

    address: Address
    pool: urllib3.PoolManager

    def ask(self, method: str, path: str, *, accept: tuple[int, ...] = (), **content: Any) -> tuple[int, Any]:
        """Return status and JSON of an answer; errors and arguments are those of `send`."""
        answer = self.send(method, path, accept=accept, **content)
        try:
            return answer.status, answer.json()
        except ValueError:
            raise self.foreign() from None

    def send(
        self,
        method: str,
        path: str,
        *,
        accept: tuple[int, ...] = (),
        json: Any = None,
        fields: Mapping[str, Any] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer to a request with JSON, with the fields of a form, or with nothing.

        Raises KitError where none comes, and for a status of 300 or more that is not in `accept`.
        """
        address = self.address
        try:
            answer = self.pool.request(
                method, address.url + path, headers=address.headers, json=json, fields=fields, redirect=False
            )
        except HTTPError as error:
            raise KitError(_unreachable(address, error)) from None
        if answer.status >= 300 and answer.status not in accept:
            raise KitError(_refusal(address, answer, f"{method} {path}"))
        return answer

    def foreign(self) -> KitError:
        """Return the error of a server that is something else."""
        return KitError(f"What answers at {self.address.url} is not {self.address.name}; mend {self.address.setting}.")


@contextmanager
def connect(address: Address, ca_certs: Path | None) -> Iterator[Server]:
    """Yield a server to ask; nothing is sent yet. The authority of `ca_certs` is trusted as those of the system are."""
    trusted = ssl.create_default_context()
    if ca_certs:
        try:
            trusted.load_verify_locations(ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"elasticsearch_ca_certs: {ca_certs} can't be read as a PEM file: {error}.") from None
    # A request that failed half-way may have been carried out, so none is tried again.
    with urllib3.PoolManager(ssl_context=trusted, timeout=TIMEOUT_S, retries=False) as pool:
        yield Server(address, pool)


def _unreachable(address: Address, error: HTTPError) -> str:
    server, text = f"{address.name} at {address.url}", str(error)
    if isinstance(error, ReadTimeoutError):
        return f"{server} did not answer in {TIMEOUT_S} s; see its log, or try again when it is less busy."
    if "WRONG_VERSION_NUMBER" in text:
        return f"{server} does not speak TLS; write http:// in {address.setting}."
    if isinstance(error, SSLError):
        return client.distrusted(text, server, address.setting) or f"{server} can't be reached over TLS ({text})."
    if "Connection aborted" in text and address.url.startswith("http:"):
        return f"{server} closed the connection; write https:// in {address.setting} if it speaks TLS, or see its log."
    why = re.search(r"\[Errno -?\d+\] ([^)'\"]+)", text)
    return f"{server} can't be reached ({why[1] if why else text}); start it, or mend {address.setting}."


def _refusal(address: Address, answer: urllib3.BaseHTTPResponse, request: str) -> str:
    """Say why the server refused a request."""
    server, reason = f"{address.name} at {address.url}", _reason(answer)
    match answer.status:
        case 401:
            return f"{server} does not accept the login; {address.login}."
        case 403:
            return f"{server} does not let this login do that ({reason}); {address.privileges}."
        case 404:
            return f"{address.url} has no {request} ({reason}); is the base path in {address.setting} right?"
        case 429 | 502 | 503 | 504:
            return f"{server} is not ready ({reason}); see its log, or try again in a moment."
        case status if status < 400:
            return f"{address.url} leads on to {answer.headers.get('location')}; mend {address.setting}."
    return f"{server} refused {request} ({reason})."


def _reason(answer: urllib3.BaseHTTPResponse) -> str:
    """Return what the server says of a refusal; a proxy's page says nothing but its status."""
    try:
        message = json.loads(answer.data)["message"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status}"
    return str(message).rstrip(".")
