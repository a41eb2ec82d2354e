"""Elasticsearch: does it answer, in which version, to whom, and has it room for the next days?"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any

from elastic_transport import TransportError
from elasticsearch import (
    ApiError,
    AuthorizationException,
    Elasticsearch,
    UnsupportedProductError,
)

from verl_ingest.checks import disk, privileges
from verl_ingest.checks.check import Check, answered, said
from verl_ingest.context.words import counted, listed
from verl_ingest.index import client
from verl_ingest.index.mappings import EVERY_PATTERN, RECORDS_PATTERN
from verl_ingest.settings import Settings

NAME = "server"
OLDEST, NEWEST_MAJOR = (8, 19), 9
FULL = 0.8  # a share of a limit from which on it is worth a look
DAYS_INDICES = 2 * 2  # of records and of samples, each with a copy

Look = Callable[[Elasticsearch], Iterator[Check]]


def check(settings: Settings, *, before_apply: bool = False) -> Iterator[Check]:
    """Yield a check on each matter of the server; where it can't be used at all, just that one, named `NAME`.

    Before an `apply` the login must have what that takes.
    """
    yield from answered(NAME, partial(_looks, settings, before_apply))


def asked(name: str, look: Look, server: Elasticsearch, settings: Settings) -> Iterator[Check]:
    """Yield what `look` finds; what this login may not see, or this server has not, makes the check unknown."""
    try:
        yield from answered(name, partial(look, server))
    except (TransportError, ApiError, UnsupportedProductError) as error:
        yield said(name, "unknown", str(client.explain(error, settings)))


def _looks(settings: Settings, before_apply: bool) -> Iterator[Check]:
    with client.explained(settings), client.connect(settings) as server:
        version = _version(server)
        yield version
        if version.verdict == "wrong":
            return
        looks: dict[str, Look] = {
            "security": _security,
            "privileges": partial(privileges.check, before_apply=before_apply),
            "health": _health,
            disk.NAME: disk.check,
            "shards": _shards,
            "fields": _fields,
        }
        for name, look in looks.items():
            yield from asked(name, look, server, settings)


def _version(server: Elasticsearch) -> Check:
    """Return the verdict on the versions of the nodes; raises what the client raises where the server can't be used."""
    try:
        nodes = server.nodes.info(node_id="_all", metric="_none", filter_path="nodes.*.version")["nodes"]
    except AuthorizationException:
        found = "It answers, and does not tell this login its version."
        return Check(NAME, "unknown", found, f"give the user the role {privileges.READER}")
    return judge_versions([node["version"] for node in nodes.values()])


def judge_versions(versions: Sequence[str]) -> Check:
    """Return the verdict on the versions of a server's nodes: the oldest counts."""
    oldest = min(versions, key=_number)
    number = _number(oldest)
    found = f"It answers: Elasticsearch {oldest}, {counted(len(versions), 'node')}."
    if number < OLDEST:
        return Check(NAME, "wrong", found, "update it to 8.19 or 9.x, which the kit is made for")
    if number[0] > NEWEST_MAJOR:
        return Check(NAME, "watch", found, f"the kit is tested up to {NEWEST_MAJOR}.x: use a newer kit if there is one")
    return Check(NAME, "fine", found)


def _number(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def _security(server: Elasticsearch) -> Iterator[Check]:
    user = privileges.login(server)
    if user is None:
        nodes = server.nodes.info(node_id="_all", metric="http", filter_path="nodes.*.http.bound_address")["nodes"]
        yield judge_open([address for node in nodes.values() for address in node["http"]["bound_address"]])
        return
    roles = listed(user["roles"]) if user["roles"] else "no role"
    yield Check("security", "fine", f"On; the login is {user['username']} with {roles}.")


def judge_open(bound: Sequence[str]) -> Check:
    """Return the verdict on a server without security, by the addresses that it listens on."""
    if bound and all(ip_address(address.rpartition(":")[0].strip("[]")).is_loopback for address in bound):
        return Check("security", "fine", "Off; the server listens to its own machine alone.")
    found = "Off: whoever reaches the server may read and delete everything."
    return Check("security", "watch", found, "turn it on (xpack.security.enabled), then docs/deploy/security.md")


def _health(server: Elasticsearch) -> Iterator[Check]:
    yield judge_health(server.cluster.health(index=EVERY_PATTERN))


def judge_health(health: Mapping[str, Any]) -> Check:
    """Return the verdict on the health of the kit's own indices."""
    unassigned = health["unassigned_shards"]
    match health["status"]:
        case "red":
            return Check(
                "health",
                "wrong",
                f"Red: {counted(unassigned, 'shard')} of the kit's indices can be neither read nor written.",
                "GET _cluster/allocation/explain says why",
            )
        case "yellow":
            return Check(
                "health",
                "watch",
                f"Yellow: {counted(unassigned, 'shard')} of the kit's indices lack their copy.",
                "GET _cluster/allocation/explain says why; with one node left, the loss of it loses records",
            )
    shards = health["active_shards"]
    found = f"Green: {counted(shards, 'shard')} of the kit's indices." if shards else "The kit has no index yet."
    return Check("health", "fine", found)


def _shards(server: Elasticsearch) -> Iterator[Check]:
    found = server.cluster.get_settings(include_defaults=True, flat_settings=True)
    limit = {**found["defaults"], **found["persistent"], **found["transient"]}["cluster.max_shards_per_node"]
    health = server.cluster.health()
    yield judge_shards(health["active_shards"], int(limit) * health["number_of_data_nodes"])


def judge_shards(shards: int, limit: int) -> Check:
    """Return the verdict on the shards of all indices, of which the server takes no more than `limit`."""
    found = f"{shards:,} of the {limit:,} shards that the server takes (cluster.max_shards_per_node)."
    remedy = "delete old days (`verl-ingest retention`), or add a node"
    if shards + DAYS_INDICES > limit:
        return Check("shards", "wrong", f"{found} The next day's index can't be made.", remedy)
    return Check("shards", "watch", found, remedy) if shards >= FULL * limit else Check("shards", "fine", found)


def _fields(server: Elasticsearch) -> Iterator[Check]:
    names = [index["name"] for index in server.indices.resolve_index(name=RECORDS_PATTERN)["indices"]]
    if not names:
        yield Check("fields", "fine", "No daily index yet.")
        return
    newest = max(names)
    index = server.indices.get(index=newest, features="mappings,settings", flat_settings=True)[newest]
    limit = int(index["settings"].get("index.mapping.total_fields.limit", 1_000))
    yield judge_fields(newest, count_fields(index["mappings"].get("properties", {})), limit)


def judge_fields(index: str, fields: int, limit: int) -> Check:
    """Return the verdict on the fields of the newest daily index."""
    found = f"{fields:,} of {limit:,} fields in {index}."
    remedy = "log fewer names of metrics: a name with a step, a sample or a file in it makes a field each"
    if fields >= limit:
        return Check("fields", "wrong", f"{found} New metrics are kept, and no chart or search finds them.", remedy)
    return Check("fields", "watch", found, remedy) if fields >= FULL * limit else Check("fields", "fine", found)


def count_fields(properties: Mapping[str, Any]) -> int:
    """Return how many fields a mapping has as the server counts them: objects and sub-fields too."""
    return sum(
        1 + count_fields(field.get("properties", {})) + len(field.get("fields", {})) for field in properties.values()
    )
