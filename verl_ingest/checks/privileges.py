"""What the login may do: all that it needs is asked in one request, where the server has security."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticsearch import ApiError, AuthenticationException, AuthorizationException, Elasticsearch

from verl_ingest.checks.check import Check
from verl_ingest.context.words import listed
from verl_ingest.index.mappings import EVERY_PATTERN

NAME = "privileges"
TO_READ = {"indices": [{"names": EVERY_PATTERN.split(","), "privileges": ["read", "view_index_metadata"]}]}
TO_APPLY = {"cluster": ["monitor", "manage_index_templates"], **TO_READ}


def login(server: Elasticsearch) -> Mapping[str, Any] | None:
    """Return the user as the server knows it, None where security is off."""
    try:
        return server.security.authenticate()
    except (AuthenticationException, AuthorizationException):
        raise
    except ApiError:  # without security there is no such request
        return None


def check(server: Elasticsearch, *, before_apply: bool) -> Iterator[Check]:
    """Look whether the login may read, and before an `apply` whether it may write what that brings."""
    if login(server) is None:
        return
    needed = TO_APPLY if before_apply else TO_READ
    yield judge(missing(server.security.has_privileges(**needed)), "apply" if before_apply else "read")


def missing(answer: Mapping[str, Any]) -> list[str]:
    """Return the privileges that the login has not, with what they are on."""
    cluster = [name for name, granted in answer["cluster"].items() if not granted]
    return cluster + [
        f"{name} on {index}"
        for index, privileges in answer["index"].items()
        for name, granted in privileges.items()
        if not granted
    ]


def judge(lacking: Sequence[str], purpose: str) -> Check:
    """Return the verdict on what the login lacks to do something."""
    if not lacking:
        return Check(NAME, "fine", f"The login may {purpose}.")
    role = "verl_admin" if purpose == "apply" else "verl_reader"
    remedy = f"give the user the role {role} (docs/deploy/security.md)"
    return Check(NAME, "wrong", f"To {purpose} the login lacks {listed(lacking)}.", remedy)
