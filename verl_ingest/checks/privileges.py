"""What the login may do: all that it needs is asked in one request, where the server has security."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticsearch import ApiError, AuthenticationException, AuthorizationException, Elasticsearch

from verl_ingest.checks.check import Check
from verl_ingest.context.words import listed
from verl_ingest.index import roles

NAME = "privileges"
READER, ADMIN = "verl_reader", "verl_admin"


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
    role, purpose = (ADMIN, "apply") if before_apply else (READER, "read")
    needed = roles.BODIES[role]
    answer = server.security.has_privileges(cluster=needed["cluster"], index=needed["indices"])
    yield judge(missing(answer), role, purpose)


def missing(answer: Mapping[str, Any]) -> list[str]:
    """Return the privileges that the login has not, with what they are on."""
    cluster = [name for name, granted in answer["cluster"].items() if not granted]
    return cluster + [
        f"{name} on {index}"
        for index, privileges in answer["index"].items()
        for name, granted in privileges.items()
        if not granted
    ]


def judge(lacking: Sequence[str], role: str, purpose: str) -> Check:
    """Return the verdict on what the login lacks of a role, which is what it takes to do something."""
    if not lacking:
        return Check(NAME, "fine", f"The login may {purpose}.")
    remedy = f"give the user the role {role} (docs/deploy/security.md)"
    return Check(NAME, "wrong", f"To {purpose} the login lacks {listed(lacking)}.", remedy)
