"""What `apply` brings to Elasticsearch: is it there, is it the kit's own, and have the indices been made by it?"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from elasticsearch import Elasticsearch

from verl_ingest.checks import drift, privileges
from verl_ingest.checks.check import Check, said
from verl_ingest.checks.server import asked
from verl_ingest.errors import StoreError
from verl_ingest.index import apply, client, roles
from verl_ingest.settings import Settings

NAME = "templates"


def check(settings: Settings, *, before_apply: bool = False) -> Iterator[Check]:
    """Yield a check on each kind of asset, and on the indices that were made without them.

    Before an `apply`, which brings what is missing, just that counts which it would not replace.
    """
    with client.connect(settings) as server:
        yield from asked(NAME, partial(_rows, settings, before_apply), server, settings)
        yield from asked("roles", _roles, server, settings)
        yield from asked("indices", _misshapen, server, settings)


def _rows(settings: Settings, before_apply: bool, server: Elasticsearch) -> Iterator[Check]:
    lacking, strange = ("fine", "wrong") if before_apply else ("wrong", "watch")
    found = apply.compare(server, apply.wanted(settings))
    templates = [row for row in found if row.asset.kind != "ilm_policy"]
    policies = [row for row in found if row.asset.kind == "ilm_policy"]
    yield drift.judge(NAME, templates, lacking=lacking, strange=strange)
    if policies:
        yield drift.judge("ILM", policies, lacking=lacking, strange=strange)
    else:
        yield Check("ILM", "fine", "This server is built without it: old days are not merged.")


def _roles(server: Elasticsearch) -> Iterator[Check]:
    if privileges.login(server) is None:  # without security there are none
        return
    try:
        found = apply.compare(server, roles.wanted())
    except roles.NotKept as error:
        yield said("roles", "unknown", str(error))
        return
    check = drift.judge("roles", found, lacking="unknown", strange="watch")
    if check.verdict == "unknown":
        yield replace(check, remedy=f"{check.remedy} as a superuser; those of a roles.yml are not shown to anyone")
    else:
        yield check


def _misshapen(server: Elasticsearch) -> Iterator[Check]:
    if indices := apply.misshapen(server):
        raise StoreError(client.misshapen(indices))
    yield Check("indices", "fine", "Every one is made by the kit's templates.")
