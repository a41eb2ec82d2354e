"""The roles that the kit's logins need, each with no more than its work takes -> the security API, or roles.yml."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import yaml
from elasticsearch import ApiError, AuthorizationException, BadRequestError, Elasticsearch, NotFoundError

from verl_ingest import assets, changes
from verl_ingest.errors import StoreError
from verl_ingest.index.mappings import ALL_PATTERN, EVERY_PATTERN, Template

# For servers whose roles are kept in files: the default rendering in the repository.
FILE = "deploy/elasticsearch/roles.yml"
_HEAD = """\
# Rendered from verl_ingest/index/roles.py by `verl-ingest render`; edit that.
# For servers that take no roles over their API: append this to roles.yml in the config folder of every node.
"""

BODIES: dict[str, dict[str, Any]] = {
    "verl_writer": {
        "description": "For the agents: adds records to the kit's daily indices and makes these; reads nothing.",
        "indices": [{"names": [ALL_PATTERN], "privileges": ["auto_configure", "index"]}],
    },
    "verl_reader": {
        "description": "For people, the kit's service and Grafana: reads the kit's indices, writes nothing.",
        "cluster": ["monitor"],  # Grafana asks for the server's version
        "indices": [{"names": EVERY_PATTERN.split(","), "privileges": ["read", "view_index_metadata"]}],
    },
    "verl_admin": {
        "description": "For whoever applies, loads, repairs and deletes: all that is the kit's own, but no roles.",
        # read_security compares the roles; manage_security, which writes them, could give itself everything.
        "cluster": ["manage_ilm", "manage_index_templates", "manage_own_api_key", "monitor", "read_security"],
        "indices": [{"names": EVERY_PATTERN.split(","), "privileges": ["manage", "read", "write"]}],
    },
}

_BY_FILE = f"append {assets.path(FILE)} to the server's roles.yml"
_ONCE = f"apply as a superuser once, or {_BY_FILE}"
# No request names them, whoever asks; the server looks into that file before it looks at the roles of its API.
UNSEEN = (
    "Roles: the server shows nobody what is in its roles.yml; where these are in it, it goes by that, not by copies."
)


class NotKept(StoreError):
    """The server does not take or show roles over its API, at least not from this login; nothing else is wrong."""


class NotNeeded(NotKept):
    """There is nothing to do about roles: security is off, or the login has one of the kit's, from a file."""


def wanted() -> list[Template]:
    """Return the roles as assets that can be compared and written as templates are."""
    return [Template("role", name, body | {"_meta": changes.mark(body)}) for name, body in BODIES.items()]


def file() -> str:
    """Return the text of roles.yml; the server reads it role by role, so that none may refer to another's lines."""
    return _HEAD + yaml.safe_dump(BODIES, sort_keys=False, width=120)


def helpful(kind: str, privileges: Sequence[str], *, on: str | None) -> str | None:
    """Return the role of a person that has the first of these privileges that any has, None where none has.

    Each of the privileges would do. `kind` is cluster or index, `on` the indices (separated by commas), where the
    server names them.
    """
    indices = [index.removeprefix("-") for index in on.split(",")] if on else []
    for privilege in privileges:
        for name in ("verl_reader", "verl_admin"):
            [grant] = BODIES[name]["indices"]
            covered = all(any(fnmatchcase(index, pattern) for pattern in grant["names"]) for index in indices)
            if covered and privilege in (BODIES[name]["cluster"] if kind == "cluster" else grant["privileges"]):
                return name
    return None


def read(client: Elasticsearch) -> dict[str, dict[str, Any]]:
    """Return the bodies of those roles that are there; raises NotKept where the server does not tell."""
    try:
        found = client.security.get_role(name=",".join(BODIES))
    except NotFoundError as error:  # so are roles that are kept in files
        if client.security.has_privileges(cluster=["manage_security"])["has_all_requested"]:
            return {}
        if {*BODIES} & {*client.security.authenticate()["roles"]}:
            raise NotNeeded("Roles: not shown; there are some, since the login has one.") from error
        raise NotKept(f"Roles: none seen, and the login lacks manage_security to write any; {_ONCE}.") from error
    except AuthorizationException as error:
        raise NotKept("Roles: not compared, since the login lacks read_security; use one of verl_admin.") from error
    except ApiError as error:
        if error.status_code not in (400, 405):
            raise
        raise NotNeeded("Roles: none, since security is off.") from error
    return {name: _content(body) for name, body in found.items()}


def write(client: Elasticsearch, name: str, body: dict[str, Any]) -> None:
    """Put one role; raises NotKept where the server does not take it."""
    own = {key: value for key, value in body.items() if key != "_meta"}
    try:
        client.security.put_role(name=name, body=own | {"metadata": body["_meta"]})
    except AuthorizationException as error:
        raise NotKept(f"Roles: not written after all, since the login lacks manage_security; {_ONCE}.") from error
    except BadRequestError as error:
        why = error.body["error"]["reason"]
        raise NotKept(
            f"Roles: not written after all, as the server takes none over its API ({why}); {_BY_FILE}."
        ) from error


def _content(body: dict[str, Any]) -> dict[str, Any]:
    """Return what a role says, in the form in which the kit writes it; what the server fills in is left out."""
    rest = {key: value for key, value in body.items() if value and key not in ("metadata", "transient_metadata")}
    if "cluster" in rest:
        rest["cluster"] = sorted(rest["cluster"])
    rest["indices"] = [
        {key: sorted(value) if isinstance(value, list) else value for key, value in grant.items() if value}
        for grant in rest.get("indices", [])
    ]
    return rest | {"_meta": body["metadata"]}
