"""Who may read the pages, and what a browser may do with them."""

import base64
import binascii
import secrets
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verl_ingest.settings import Service, Settings

LONGEST = 8_192  # bytes of a path, and of a query
OPEN = ("/healthz",)  # without a login: it tells nothing
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Lets in who may read, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, settings: Settings, base: str, hosts: Collection[str] | None) -> None:
        """`base` is the path before all pages, `hosts` are the names the service goes by; None for any."""
        self._app = app
        self._service = settings.service
        self._base = base
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["root_path"] = self._base  # whether the proxy leaves it in the path or not

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if max(len(scope["raw_path"]), len(scope["query_string"])) > LONGEST:
            return PlainTextResponse(f"The address is longer than {LONGEST:,} bytes.\n", 414)
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("The service does not go by this name; set service_url to its address.\n", 421)
        if scope["path"] in OPEN or _may_read(self._service, headers, scope["client"]):
            return None
        if self._service.password is None:
            return PlainTextResponse("Only who comes through the proxy that checks the login may read this.\n", 403)
        challenge = {"WWW-Authenticate": 'Basic realm="verl-ingest", charset="UTF-8"'}
        return PlainTextResponse("Log in with the user and password of the settings under `service`.\n", 401, challenge)


def local_names(settings: Settings, host: str) -> set[str]:
    """Return the names by which browsers reach a service that listens on loopback only.

    A page of another site could point its own name at loopback, to read from there what it may not.
    """
    return {"localhost", "127.0.0.1", "::1", host, urlsplit(settings.service_url or "").hostname or "localhost"}


def _may_read(service: Service, headers: Headers, client: tuple[str, int] | None) -> bool:
    if service.password is None and service.user_header is None:
        return True
    return _is_logged_in(service, headers) or _is_vouched_for(service, headers, client)


def _is_logged_in(service: Service, headers: Headers) -> bool:
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if service.username is None or service.password is None or scheme.lower() != "basic":
        return False
    wanted = f"{service.username}:{service.password.get_secret_value()}"
    try:
        return secrets.compare_digest(base64.b64decode(given, validate=True), wanted.encode())
    except binascii.Error:
        return False


def _is_vouched_for(service: Service, headers: Headers, client: tuple[str, int] | None) -> bool:
    """Tell whether a trusted proxy names the user."""
    if service.user_header is None or client is None or not headers.get(service.user_header):
        return False
    return any(ip_address(client[0]) in network for network in service.proxies)


def _host(header: str) -> str:
    return urlsplit(f"//{header}").hostname or ""
