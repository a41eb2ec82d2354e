"""What `apply` brings to Elasticsearch: is it there, is it the kit's own, and have the indices been made by it?"""

from collections.abc import Iterator
from functools import partial
from itertools import groupby

from elasticsearch import Elasticsearch

from verl_ingest.checks import drift
from verl_ingest.checks.check import Check
from verl_ingest.checks.server import asked
from verl_ingest.errors import StoreError
from verl_ingest.index import apply, client
from verl_ingest.settings import Settings

NAME = "templates"


def check(settings: Settings, *, before_apply: bool = False) -> Iterator[Check]:
    """Yield a check on each kind of asset, and on the indices that were made without them.

    Before an `apply`, which brings what is missing, just that counts which it would not replace.
    """
    with client.connect(settings) as server:
        yield from asked(NAME, partial(_rows, settings, before_apply), server, settings)
        yield from asked("indices", _misshapen, server, settings)


def _rows(settings: Settings, before_apply: bool, server: Elasticsearch) -> Iterator[Check]:
    lacking, strange = ("fine", "wrong") if before_apply else ("wrong", "watch")
    found = apply.compare(server, apply.wanted(settings))
    for kind, rows in groupby(found, key=lambda row: apply.KINDS[row.asset.kind].words):
        yield drift.judge(f"{kind}s", list(rows), lacking=lacking, strange=strange)


def _misshapen(server: Elasticsearch) -> Iterator[Check]:
    if indices := apply.misshapen(server):
        raise StoreError(client.misshapen(indices))
    yield Check("indices", "fine", "Every one is made by the kit's templates.")
