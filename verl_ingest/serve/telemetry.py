"""What the service counts about itself, for Prometheus."""

import time

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Telemetry:
    """Counts requests by route and status, their time, and errors of the store."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "verl_ingest_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "verl_ingest_request_seconds", "Time to answer a request.", ["route"], registry=self._registry
        )
        self.store_errors = Counter(
            "verl_ingest_store_errors", "Requests that the store could not answer.", registry=self._registry
        )

    def text(self) -> bytes:
        """Return all counts as Prometheus reads them."""
        return generate_latest(self._registry)

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request under the pattern of its route, which names no run."""
        route = scope["route"].path if "route" in scope else "other"
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)


class Measured:
    """Counts every request that goes through."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._telemetry.count(scope, status, time.perf_counter() - started)
