"""Kibana: which of the kit's saved objects it has, and the import of those it should have.

Everything is asked in the space that kibana_url names. Saved objects are read by export and written by import, the two
requests that Elastic keeps for this in all versions.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from verl_ingest import changes
from verl_ingest.changes import Row
from verl_ingest.errors import KitError
from verl_ingest.install import http
from verl_ingest.install.http import Server
from verl_ingest.kibana.objects import NAMES, SavedObject, content, ndjson
from verl_ingest.settings import Settings

OLDEST = (8, 19)
NEWEST_MAJOR = 9  # Kibana takes the objects of the major version before its own, and these are of version 8

_SPACE = re.compile(r"(?P<base>.*)/s/(?P<space>[a-z0-9_-]+)$")


@contextmanager
def connect(settings: Settings) -> Iterator[Server]:
    """Yield the Kibana of the settings, after a look at its version and its space.

    Kibana knows whoever Elasticsearch knows, so the login is that of Elasticsearch. Raises KitError where the server is
    not to be used.
    """
    address = http.Address(
        name="Kibana",
        url=settings.kibana_url,
        setting="kibana_url",
        headers={"kbn-xsrf": changes.MANAGED_BY} | _login(settings),
        login="set Elasticsearch's: ELASTICSEARCH_API_KEY, or ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD",
        privileges="its role needs the Kibana privileges Discover, Data View Management and Saved Objects Management "
        "in this space, with all rights",
    )
    with http.connect(address, settings.elasticsearch_ca_certs) as server:
        _check_version(server)
        _check_space(server)
        yield server


def compare(server: Server, objects: Sequence[SavedObject], *, overwrite: bool = False) -> list[Row]:
    """Return how each saved object stands in Kibana; with `overwrite` a stranger's change counts as the kit's own."""
    return [_row(item, _stored(server, item), overwrite=overwrite) for item in objects]


def write(server: Server, rows: Sequence[Row]) -> None:
    """Import the saved objects that are to be created or updated; raises KitError where Kibana does not take all."""
    objects = [row.asset for row in rows if row.is_to_be_written]
    if not objects:
        return
    file = ("verl.ndjson", ndjson(objects), "application/ndjson")
    _, answer = server.ask("POST", "/api/saved_objects/_import?overwrite=true", fields={"file": file})
    if not answer.get("success"):
        failures = "; ".join(map(_failure, answer.get("errors", []))) or "it does not say why"
        raise KitError(f"Kibana at {server.address.url} did not take everything: {failures}.")
    for item in answer.get("successResults", []):
        if "destinationId" in item:
            raise KitError(
                f"Kibana at {server.address.url} has a {NAMES[item['type']]} {item['id']} in another space, so it gave "
                f"this one the id {item['destinationId']}, which no link leads to; delete this one, and share the "
                "other with this space (Stack Management, Saved Objects)."
            )


def _row(item: SavedObject, stored: SavedObject | None, *, overwrite: bool) -> Row:
    name = f"{NAMES[item['type']]} {item['id']}"
    found = None if stored is None else content(stored)
    return changes.compare(name, item, wanted=content(item), found=found, overwrite=overwrite)


def _login(settings: Settings) -> Mapping[str, str]:
    if settings.elasticsearch_api_key:
        return {"authorization": f"ApiKey {settings.elasticsearch_api_key.get_secret_value()}"}
    if settings.elasticsearch_username and settings.elasticsearch_password:
        pair = f"{settings.elasticsearch_username}:{settings.elasticsearch_password.get_secret_value()}"
        return {"authorization": f"Basic {b64encode(pair.encode()).decode()}"}
    return {}


def _check_version(server: Server) -> None:
    match server.ask("GET", "/api/status")[1]:
        case {"version": {"number": str(number)}}:
            pass
        case {"status": {"overall": _}}:  # it tells its version only to those whom it knows
            raise KitError(f"Kibana at {server.address.url} wants a login; {server.address.login}.")
        case _:
            raise server.foreign()
    major, minor = map(int, number.split(".")[:2])
    if (major, minor) < OLDEST or major > NEWEST_MAJOR:
        raise KitError(
            f"Kibana at {server.address.url} is {number}, and the kit's saved objects are for 8.19 and 9.x; "
            "use such a version, or unset kibana_url."
        )


def _check_space(server: Server) -> None:
    """Raise KitError where the space is not there: Kibana would take the objects, and show them to nobody."""
    match = _SPACE.match(server.address.url)
    if match is None:
        return
    status, _ = server.ask("GET", f"/api/spaces/space/{match['space']}", accept=(404,))
    if status == 404:
        raise KitError(
            f"Kibana at {match['base']} has no space {match['space']}, or does not show it to this login; "
            "mend kibana_url."
        )


def _stored(server: Server, item: SavedObject) -> SavedObject | None:
    """Return what Kibana has under the id of an object, None where it has nothing."""
    key = {"type": item["type"], "id": item["id"]}
    path, body = "/api/saved_objects/_export", {"objects": [key], "excludeExportDetails": True}
    status, answer = server.ask("POST", path, accept=(400,), json=body)
    if status != 400:
        return answer
    errors = [found["error"] for found in answer.get("attributes", {}).get("objects", [])]
    if [error["statusCode"] for error in errors] == [404]:
        return None
    why = answer.get("message")
    raise KitError(f"Kibana at {server.address.url} can't export {NAMES[item['type']]} {item['id']} ({why}).")


def _failure(error: Mapping[str, Any]) -> str:
    """Say which object was not imported, and why."""
    why = error["error"]
    name = f"{NAMES.get(error['type'], error['type'])} {error['id']}"
    if why["type"] == "missing_references":
        lacking = " and ".join(f"{NAMES.get(item['type'], item['type'])} {item['id']}" for item in why["references"])
        return f"{name} refers to {lacking}, which is not there"
    return f"{name}: {why.get('message') or why['type']}".rstrip(".")
