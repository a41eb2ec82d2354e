"""A real browser: Chromium, driven by Playwright, with everything watched that a page of the kit must never do."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request, Route, sync_playwright

from tests.serving import listening
from verl_ingest.query.store import Store
from verl_ingest.settings import Settings

MISSING = "no Chromium: set CHROMIUM to its path, or put chromium on the PATH"
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 60_000
# Kibana with a space, Grafana below a path; an empty page stands in for whatever is elsewhere.
KIBANA, GRAFANA = "https://kb.example/s/ml", "https://g.example/g"
EMPTY = "<!doctype html><title>elsewhere</title>"


def find(environment: Mapping[str, str]) -> str | None:
    """Return the path of Chromium: CHROMIUM, else the one on the PATH; None where there is none."""
    return environment.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launched(binary: str) -> Iterator[Browser]:
    """Run a browser while the block lasts; its sandbox does not work for root."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


# Not of the session: as long as Playwright runs, no test in this thread could start an event loop of its own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The browser; skips the test where there is none."""
    binary = find(os.environ)
    if binary is None:
        pytest.skip(MISSING)
    with launched(binary) as browser:
        yield browser


@pytest.fixture(scope="module")
def service(elasticsearch_url: str, store: Store) -> Iterator[str]:
    """The address of the service, listening as `verl-ingest serve` does."""
    settings = Settings(elasticsearch_url=elasticsearch_url, kibana_url=KIBANA, grafana_url=GRAFANA)
    with listening(settings, store) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def complaints() -> list[str]:
    """What went wrong in the windows of a test; it must be empty at its end."""
    return []


@pytest.fixture
def visit(chromium: Browser, service: str, complaints: list[str]) -> Iterator[Callable[..., Page]]:
    """Open an address in a window of its own, with the options of Playwright's contexts."""
    contexts: list[BrowserContext] = []

    def open_(address: str = "about:blank", **options: Any) -> Page:
        context = chromium.new_context(base_url=service, **options)
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        _watch(context, service, complaints)
        page = context.new_page()
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


def _watch(context: BrowserContext, service: str, complaints: list[str]) -> None:
    def dismiss(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(request: Request) -> None:
        leads_out = request.is_navigation_request() and request.url.startswith((f"{KIBANA}/", f"{GRAFANA}/"))
        if not (leads_out or request.url.startswith((f"{service}/", "data:"))):
            complaints.append(f"request: {request.url}")

    def stand_in(route: Route) -> None:
        route.fulfill(body=EMPTY, content_type="text/html")

    context.on("dialog", dismiss)
    context.on("request", check)
    context.on("weberror", lambda error: complaints.append(f"script: {error.error}"))
    context.on("console", lambda said: complaints.append(f"{said.type}: {said.text}"))
    context.route(lambda url: not url.startswith(f"{service}/"), stand_in)
