"""Grafana: which of the kit's folder, data sources and dashboards it has, and the requests that bring the rest.

What Grafana reads from files by itself (provisioning) is left to those files.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from verl_ingest import changes
from verl_ingest import grafana as assets
from verl_ingest.changes import Row
from verl_ingest.errors import KitError
from verl_ingest.grafana import sources
from verl_ingest.grafana.board import Dashboard
from verl_ingest.install import http
from verl_ingest.install.http import Server
from verl_ingest.settings import Settings

OLDEST = (11, 6)
HISTORY = 20  # as many versions as Grafana keeps by default
FROM_A_FILE = "Grafana reads it from a file of its own"

_MARK = "verlIngest"  # in a data source's jsonData, of which Grafana keeps all that it does not know
_MESSAGE = re.compile(rf"{changes.MANAGED_BY} (?P<version>\S+), (?P<content>[0-9a-f]{{16}})")


@dataclass(frozen=True)
class Write:
    """The request that brings an asset."""

    method: str
    path: str
    body: Mapping[str, Any]


@contextmanager
def connect(settings: Settings) -> Iterator[Server]:
    """Yield the Grafana of the settings, after a look at its version; raises KitError where it is not to be used."""
    token = settings.grafana.token
    address = http.Address(
        name="Grafana",
        url=settings.grafana_url,
        setting="grafana_url",
        headers={"authorization": f"Bearer {token.get_secret_value()}"} if token else {},
        login="set VERL_INGEST_GRAFANA__TOKEN to the token of a service account",
        privileges="give the service account of VERL_INGEST_GRAFANA__TOKEN the role Admin",
    )
    with http.connect(address, settings.elasticsearch_ca_certs) as server:
        _check_version(server)
        yield server


def compare(server: Server, settings: Settings, *, overwrite: bool = False) -> list[Row]:
    """Return how each asset stands in Grafana; with `overwrite` a stranger's change counts as the kit's own."""
    return [
        _folder(server),
        *(_data_source(server, source, overwrite=overwrite) for source in _sources(settings)),
        *(_dashboard(server, item, overwrite=overwrite) for item in assets.dashboards(_service(settings))),
    ]


def write(server: Server, rows: Sequence[Row]) -> None:
    """Send what is to be created or updated, in its order."""
    for row in rows:
        if row.is_to_be_written:
            server.ask(row.asset.method, row.asset.path, json=row.asset.body)


def _service(settings: Settings) -> str:
    return settings.service_url or assets.SERVICE


def _sources(settings: Settings) -> list[sources.DataSource]:
    own = settings.grafana
    elasticsearch_url = own.elasticsearch_url or settings.elasticsearch_url
    login = sources.by_api_key(own.elasticsearch_api_key.get_secret_value()) if own.elasticsearch_api_key else {}
    return sources.data_sources(elasticsearch_url, own.prometheus_url, _service(settings), login)


def _check_version(server: Server) -> None:
    match server.ask("GET", "/api/health")[1]:
        case {"database": _, "version": str(number)}:
            if tuple(map(int, number.split(".")[:2])) < OLDEST:
                raise KitError(
                    f"Grafana at {server.address.url} is {number}, and the kit's dashboards are for 11.6 and later; "
                    "use such a version, or unset grafana_url."
                )
        case {"database": _}:  # it may keep its version to itself
            pass
        case _:
            raise server.foreign()


def _found(server: Server, path: str) -> Any:
    status, body = server.ask("GET", path, accept=(404,))
    return None if status == 404 else body


def _folder(server: Server) -> Row:
    folder = assets.folder()
    found = _found(server, f"/api/folders/{folder['uid']}")
    asset = Write("POST", "/api/folders", folder)
    return Row(f"folder {folder['uid']}", asset, "created" if found is None else "kept")


def _data_source(server: Server, source: sources.DataSource, *, overwrite: bool) -> Row:
    """Compare what both have; a password that differs can't be seen, as Grafana gives none back."""
    name, path = f"data source {source['uid']}", f"/api/datasources/uid/{source['uid']}"
    wanted = _content(source)
    wanted["_meta"] = changes.mark(wanted)
    body = source | {"jsonData": source["jsonData"] | {_MARK: wanted["_meta"]}}
    found = _found(server, path)
    if found is None:
        return Row(name, Write("POST", "/api/datasources", body), "created")
    if found.get("readOnly"):
        return Row(name, None, "kept", FROM_A_FILE)
    stored = _content({key: found.get(key) for key in source})
    return changes.compare(name, Write("PUT", path, body), wanted=wanted, found=stored, overwrite=overwrite)


def _content(source: sources.DataSource) -> dict[str, Any]:
    """Return what a data source says, without secrets; the mark, where it has one, as `_meta`."""
    options = dict(source["jsonData"] or {})
    meta = options.pop(_MARK, {})
    rest = {key: value for key, value in source.items() if key != "secureJsonData"}
    return rest | {"jsonData": options, "_meta": meta}


def _dashboard(server: Server, item: Dashboard, *, overwrite: bool) -> Row:
    """Compare by the history of the dashboard: Grafana itself rewrites old dashboards, so their text proves nothing."""
    name, path = f"dashboard {item.uid}", f"/api/dashboards/uid/{item.uid}"
    wanted = item.body | {"_meta": changes.mark(item.body)}
    version, content = wanted["_meta"]["version"], wanted["_meta"]["content"]
    message = f"{changes.MANAGED_BY} {version}, {content}"
    body = {"dashboard": item.body, "folderUid": assets.folder()["uid"], "overwrite": True, "message": message}
    asset = Write("POST", "/api/dashboards/db", body)
    found = _found(server, path)
    if found is None:
        return Row(name, asset, "created")
    if found["meta"].get("provisioned"):
        return Row(name, None, "kept", FROM_A_FILE)
    stored = {key: value for key, value in found["dashboard"].items() if key not in ("id", "version")}
    newest, *older = _history(server, path)
    if newest.get("content") == content or stored == item.body:
        return Row(name, asset, "kept")
    meta = next(filter(None, [newest, *older]), {})
    if newest:  # nobody has touched it since, whatever Grafana has made of it
        meta = meta | {"content": changes.content_hash(stored)}
    return changes.compare(name, asset, wanted=wanted, found=stored | {"_meta": meta}, overwrite=overwrite)


def _history(server: Server, path: str) -> list[dict[str, str]]:
    """Return who wrote each version of a dashboard, the newest first; empty for a version that is not the kit's."""
    _, answer = server.ask("GET", f"{path}/versions?limit={HISTORY}")
    versions = answer["versions"] if isinstance(answer, dict) else answer  # before 11.5 it was the list alone
    marks = [_MESSAGE.fullmatch(version["message"]) for version in versions]
    return [{"managed_by": changes.MANAGED_BY, **mark.groupdict()} if mark else {} for mark in marks]
