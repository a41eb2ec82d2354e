"""The login of the agents: does the server accept it, and may it write? Asked before they are rolled out with it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from elasticsearch import ApiError, AuthenticationException, Elasticsearch
from pydantic import SecretStr

from verl_ingest.checks.check import Check
from verl_ingest.checks.privileges import missing
from verl_ingest.checks.server import asked
from verl_ingest.context.words import listed
from verl_ingest.index import client, roles
from verl_ingest.settings import Settings

NAME = "login of the agents"
WRITER = "verl_writer"
_PAGE = "(docs/deploy/security.md)"
_KEY = re.compile(r"[\x21-\x7e]+")


def check(settings: Settings) -> Iterator[Check]:
    """Yield the verdict on the login that deploy.secret_file gives to the agents; none where security is off."""
    file, secret = settings.deploy.secret_file, ""
    if file:
        try:
            secret = file.read_text("utf-8", errors="replace").strip("\r\n")  # as Fluent Bit does
        except OSError as error:
            found = f"{file}, which has the agents' secret, can't be read ({error.strerror})."
            yield Check(NAME, "wrong", found, "mend deploy.secret_file")
            return
        if not secret.strip():
            yield Check(NAME, "wrong", f"{file} is empty.", "write the agents' password or API key into it")
            return
        if not settings.agent.username and not _KEY.fullmatch(secret):
            found = f"What {file} has is no API key, which is one line without blanks."
            yield Check(NAME, "wrong", found, "write the key's `encoded` form into it, or set agent.username")
            return
    own = as_agent(settings, secret)
    with client.connect(own) as server:
        yield from asked(NAME, partial(_look, settings), server, own)


def as_agent(settings: Settings, secret: str) -> Settings:
    """Return the settings with the login of the agents in place of that of who deploys; an empty secret is none."""
    user, hidden = settings.agent.username, SecretStr(secret) if secret else None
    return settings.model_copy(
        update={
            "elasticsearch_username": user if hidden else None,
            "elasticsearch_password": hidden if user else None,
            "elasticsearch_api_key": None if user else hidden,
        }
    )


def _look(settings: Settings, server: Elasticsearch) -> Iterator[Check]:
    try:
        answer = server.security.has_privileges(index=roles.BODIES[WRITER]["indices"])
    except AuthenticationException:
        answer = None
    except ApiError as error:
        if error.status_code not in (400, 405):
            raise
        return  # without security there is no such request
    found = judge(settings, answer)
    if answer and found.verdict == "wrong" and settings.agent.username and _is_to_come(settings):
        yield replace(found, verdict="watch", found=f"{found.found} The role {WRITER} comes with this deployment.")
    else:
        yield found


def _is_to_come(settings: Settings) -> bool:
    """Tell whether who deploys may write roles, and WRITER is not there yet: until then its users may do nothing."""
    try:
        with client.connect(settings) as server:
            return WRITER not in roles.read(server)
    except roles.NotKept:
        return False


def judge(settings: Settings, answer: Mapping[str, Any] | None) -> Check:
    """Return the verdict on the privileges that a login of the agents has; `answer` None: it is not accepted."""
    user, file = settings.agent.username, settings.deploy.secret_file
    if file is None and settings.agent.secret_file:
        return Check(NAME, "unknown", f"Not tried: agents read it from {settings.agent.secret_file} on the nodes.")
    if answer is None:
        return _refused(user, file)
    login = user or f"the API key of {answer['username']}" if file else answer["username"]
    if lacking := missing(answer):
        found = f"To write records {login} lacks {listed(lacking)}."
        give = f"give that user the role {WRITER}" if user else f"make a key of the role: `verl-ingest key {WRITER}`"
        return Check(NAME, "wrong", found, f"{give} {_PAGE}")
    return Check(NAME, "fine", f"Accepted, and {login} may write records.")


def _refused(user: str | None, file: object) -> Check:
    """Return the check on a login that the server does not accept, or that is none."""
    match bool(user), bool(file):
        case True, True:
            found = f"The server does not accept the password of {user} in {file}."
            remedy = "mend that, or agent.username"
        case False, True:
            found = f"The server does not accept the API key in {file}."
            remedy = f"make a new one (`verl-ingest key {WRITER}`); or set agent.username, if it is a password"
        case True, False:
            found, remedy = f"The server wants a login, and {user} has no secret.", "set deploy.secret_file"
        case _:
            found = "The server wants a login, and agents have none."
            remedy = f"set agent.username and deploy.secret_file {_PAGE}"
    return Check(NAME, "wrong", found, remedy)
