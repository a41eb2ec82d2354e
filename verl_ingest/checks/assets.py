"""What `apply` brings to Elasticsearch: is it there, is it the kit's own, and have the indices been made by it?"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from elasticsearch import Elasticsearch

from verl_ingest.checks import drift, privileges
from verl_ingest.checks.check import Check, said
from verl_ingest.checks.server import asked
from verl_ingest.context.words import listed
from verl_ingest.errors import StoreError
from verl_ingest.index import apply, client, existing, roles
from verl_ingest.settings import Settings

NAME = "templates"


def check(settings: Settings, *, before_apply: bool = False, overwrite: bool = False) -> Iterator[Check]:
    """Yield a check on each kind of asset, and on the indices that were made without them.

    Before an `apply`, which brings what is missing, just that counts which it would not replace; none with `overwrite`.
    """
    with client.connect(settings) as server:
        yield from asked(NAME, partial(_rows, settings, before_apply, overwrite), server, settings)
        yield from asked("roles", _roles, server, settings)
        yield from asked("indices", partial(_indices, settings, before_apply), server, settings)


def _rows(settings: Settings, before_apply: bool, overwrite: bool, server: Elasticsearch) -> Iterator[Check]:
    judge = partial(drift.judge, lacking="wrong", before_apply=before_apply)
    found = apply.compare(server, apply.wanted(settings), overwrite=overwrite)
    templates = [row for row in found if row.asset.kind != "ilm_policy"]
    policies = [row for row in found if row.asset.kind == "ilm_policy"]
    yield judge(NAME, templates)
    if policies:
        yield judge("ILM", policies)
    else:
        yield Check("ILM", "fine", "This server is built without it: old days are not merged.")


def _roles(server: Elasticsearch) -> Iterator[Check]:
    user = privileges.login(server)
    if user is None:  # without security there are none
        return
    try:
        rows = apply.compare(server, roles.wanted())
    except roles.NotKept as error:
        check = said("roles", "unknown", str(error))
    else:
        is_lacking = any(row.state == "created" for row in rows)
        check = drift.judge("roles", rows, lacking="unknown" if is_lacking else "watch")
        if check.verdict == "unknown":
            found = f"{check.found.rstrip('.')}, unless a roles.yml has them, which the server shows to nobody."
            check = replace(check, found=found, remedy=f"{check.remedy} as a superuser, where no roles.yml has them")
    own = sorted({*roles.BODIES} & {*user["roles"]})
    if check.verdict == "unknown" and own:
        check = Check("roles", "fine", f"The login has {listed(own)}; what the server keeps of it is not shown.")
    yield check


def _indices(settings: Settings, before_apply: bool, server: Elasticsearch) -> Iterator[Check]:
    if indices := apply.misshapen(server):
        raise StoreError(client.misshapen(indices))
    rows = [row for row in existing.compare(server, apply.wanted(settings)) if row.is_to_be_written]
    if rows and not before_apply:
        found = f"Fields of this kit are not searchable in {listed([row.name for row in rows])}."
        yield Check("indices", "watch", found, drift.APPLY)
    else:
        yield Check("indices", "fine", "Every one is made by the kit's templates.")
