"""`python -m tests.screenshots`: take the pictures of docs/images again, of the demo's run.

The service's clock stands at the end of that run, so that the pictures change with the pages only.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

from elasticsearch import Elasticsearch
from playwright.sync_api import expect

from tests import browser
from tests.serving import listening
from verl_ingest.demo import __main__ as demo
from verl_ingest.links import page
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.serve.kit import Kit
from verl_ingest.settings import Settings

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PICTURES = ((199, "light"), (163, "dark"))  # out of memory on one rank; a data loading bottleneck
WIDTH, MARGIN = 1280, 8
SECONDS_LATER_MS = 4_000


def main() -> None:
    """Load the demo's run and take the pictures."""
    environment, stop = demo.server()
    demo.run(["apply"], environment)
    demo.run(["load", str(demo.sample()), "--timezone", "Etc/UTC"], environment)
    url = environment["ELASTICSEARCH_URL"]
    settings = Settings(elasticsearch_url=url, kibana_url=browser.KIBANA, grafana_url=browser.GRAFANA)
    with Elasticsearch(url, request_timeout=60) as client:
        store = ElasticStore(client)
        with store.open(demo.RUN) as run:
            moment = run.row().last + SECONDS_LATER_MS
        with patch.object(Kit, "now", lambda kit: moment), listening(settings, store) as port:
            take(f"http://127.0.0.1:{port}")
    print(f"The pictures are in {IMAGES}. To stop Elasticsearch: {stop}")


def take(service: str) -> None:
    """Take the first screens of the steps, down to their last line."""
    binary = browser.find(os.environ)
    if binary is None:
        sys.exit(browser.MISSING)
    IMAGES.mkdir(exist_ok=True)
    with browser.launched(binary) as chromium:
        for number, scheme in PICTURES:
            window = chromium.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": 900})
            window.goto(service + page.step("", demo.RUN, number))
            expect(window.locator("#began")).not_to_contain_text("Looking", timeout=60_000)
            last = window.locator(".jumps").bounding_box()
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": last["y"] + last["height"] + MARGIN}
            window.screenshot(path=IMAGES / f"step-{number}-{scheme}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    main()
