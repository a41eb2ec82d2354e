"""API keys that can do what one of the kit's roles can, for a while."""

from dataclasses import dataclass
from datetime import datetime, timezone

from elasticsearch import ApiError, Elasticsearch

from verl_ingest import changes
from verl_ingest.errors import StoreError
from verl_ingest.index.client import reason_of
from verl_ingest.index.roles import BODIES


@dataclass(frozen=True)
class Key:
    """A key in the form in which it is sent, and when it ends."""

    encoded: str
    until: datetime


def make(client: Elasticsearch, role: str, *, days: int) -> Key:
    """Make a key of a role; raises StoreError where the server has no keys, or the login has not what the role has."""
    body = {key: value for key, value in BODIES[role].items() if key in ("cluster", "indices")}
    try:
        own = client.security.has_privileges(cluster=body.get("cluster"), index=body["indices"])
        if not own["has_all_requested"]:  # the server would make the key all the same
            raise StoreError(
                f"{own['username']} has not all that the role {role} has, and a key can do no more than its maker; "
                "make it as a user with the role verl_admin or superuser."
            )
        made = client.security.create_api_key(
            name=f"{role} (verl-ingest)",
            expiration=f"{days}d",
            role_descriptors={role: body},
            metadata={"managed_by": changes.MANAGED_BY},
        )
    except ApiError as error:
        if error.status_code not in (400, 405):
            raise
        raise StoreError(
            f"The server makes no API keys ({reason_of(error)[1]}); where its security is on, "
            f"make a user with the role {role} instead (docs/deploy/security.md)."
        ) from None
    return Key(made["encoded"], datetime.fromtimestamp(made["expiration"] / 1_000, timezone.utc))
