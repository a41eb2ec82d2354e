"""The page of a step as tests see it: its view, and its text as a reader finds it."""

from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from tests.demo_store import LONG_AFTER
from verl_ingest.catalog import metrics
from verl_ingest.context import around, step
from verl_ingest.serve.page import addresses, view
from verl_ingest.serve.page.view import StepView

SERVICE = "https://verl.example"


@pytest.fixture
def view_of(store) -> Callable[..., StepView]:
    """Return the view of a step's page; the addresses are those of the service at SERVICE."""

    def build(run_id: str, number: int, *, window: int = 50, **given: str) -> StepView:
        catalogue = metrics.load()
        with store.open(run_id) as run:
            evidence = step.gather(run, number, catalogue=catalogue, window=window, now=LONG_AFTER)
            context = step.describe(evidence, catalogue=catalogue, now=LONG_AFTER)
            beside = around.gather(run, evidence, context.findings, catalogue=catalogue, now=LONG_AFTER, window=window)
        to = addresses.of_step("", run_id, number, permalink=f"{SERVICE}/permalink", **given)
        return view.build(evidence, context, beside, catalogue=catalogue, addresses=to)

    return build


class Page(HTMLParser):
    """What a browser would make of a page: (tag, attributes) in order, and the text outside of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._texts: list[str] = []
        self._in_script = False
        self.feed(html)
        self.close()

    @property
    def text(self) -> str:
        """Return the words of the page, with single spaces."""
        return " ".join("".join(self._texts).split())

    def attributes(self, name: str) -> list[str]:
        """Return every value of an attribute."""
        return [attributes[name] or "" for _, attributes in self.elements if name in attributes]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self._texts.append(data)
