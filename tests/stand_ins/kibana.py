"""Kibana, as far as `apply` asks it: status, spaces, export and import of saved objects."""

import copy
import email
import json
import uuid
from typing import Any

from tests.stand_ins.recording import Answer, Recording, Request

IMPORT = "POST /api/saved_objects/_import?overwrite=true"
EXPORT = "POST /api/saved_objects/_export"
ONLY_TO_THE_KNOWN = {"status": {"overall": {"level": "available"}}}


class Kibana(Recording):
    """A Kibana of some version, with spaces; with a `login` it knows only who sends that Authorization header."""

    def __init__(self, version: str = "8.19.3", *, login: str | None = None, base_path: str = "") -> None:
        super().__init__()
        self.version, self.login, self.base_path = version, login, base_path
        self.stored: dict[str, dict[tuple[str, str], dict[str, Any]]] = {"default": {}, "ml": {}}

    def answer(self, request: Request) -> Answer:
        if not request.path.startswith(f"{self.base_path}/"):
            return _error(404, "Not Found")
        path, space = request.path.removeprefix(self.base_path), "default"
        if path.startswith("/s/"):
            _, _, space, path = path.split("/", 3)
            path = f"/{path}"
        known = self.login in (None, request.headers.get("authorization"))
        ask = f"{request.method} {path}"
        if ask == "GET /api/status":
            return Answer(200, ONLY_TO_THE_KNOWN | ({"version": {"number": self.version}} if known else {}))
        if not known:
            return _error(401, "Unauthorized")
        if request.method != "GET" and "kbn-xsrf" not in request.headers:
            return _error(400, "Request must contain a kbn-xsrf header.")
        if ask.startswith("GET /api/spaces/space/"):
            name = path.rpartition("/")[2]
            return Answer(200, {"id": name, "name": name}) if name in self.stored else _error(404, "Not Found")
        if ask == EXPORT:
            return self._export(self.stored.setdefault(space, {}), request.json)
        if ask == IMPORT:
            return self._import(self.stored.setdefault(space, {}), _file(request))
        return _error(404, "Not Found")

    def _export(self, stored: dict[tuple[str, str], dict[str, Any]], wanted: dict[str, Any]) -> Answer:
        keys = [(item["type"], item["id"]) for item in wanted["objects"]]
        absent = [
            {"type": kind, "id": name, "error": {"statusCode": 404, "error": "Not Found"}}
            for kind, name in keys
            if (kind, name) not in stored
        ]
        if absent:
            body = {"statusCode": 400, "error": "Bad Request", "message": "Error fetching objects to export"}
            return Answer(400, body | {"attributes": {"objects": absent}})
        lines = [json.dumps(stored[key]) for key in keys]
        return Answer(200, "\n".join(lines), (("content-type", "application/ndjson"),))

    def _import(self, stored: dict[tuple[str, str], dict[str, Any]], lines: list[dict[str, Any]]) -> Answer:
        results, errors = [], []
        elsewhere = {key for space in self.stored.values() if space is not stored for key in space}
        arriving = {(item["type"], item["id"]) for item in lines}
        for item in lines:
            result = {"type": item["type"], "id": item["id"], "meta": {"title": item["attributes"]["title"]}}
            missing = [r for r in item["references"] if (r["type"], r["id"]) not in stored.keys() | arriving]
            if missing:
                lacking = [{"type": reference["type"], "id": reference["id"]} for reference in missing]
                errors.append(result | {"error": {"type": "missing_references", "references": lacking}})
                continue
            identity = item["id"]
            if (item["type"], identity) in elsewhere:  # ids are unique over all spaces
                identity = str(uuid.uuid4())
                result["destinationId"] = identity
            stored[item["type"], identity] = self._upgraded(item | {"id": identity})
            results.append(result)
        body = {"success": not errors, "successCount": len(results), "warnings": [], "successResults": results}
        return Answer(200, body | ({"errors": errors} if errors else {}))

    def _upgraded(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the object as this version keeps it: since 9.4 a search has all but its texts in tabs."""
        kept = copy.deepcopy(item) | {"typeMigrationVersion": "10.9.0", "updated_at": "2026-03-01T00:00:00.000Z"}
        kept["version"] = "WzEsMV0="
        if item["type"] == "search":
            attributes = kept["attributes"]
            attributes["timeRestore"] = False
            texts = {name: attributes[name] for name in ("title", "description")}
            rest = {name: value for name, value in attributes.items() if name not in texts}
            tabs = [{"id": str(uuid.uuid4()), "label": "Untitled session 1", "attributes": rest}]
            is_new = tuple(map(int, self.version.split(".")[:2])) >= (9, 4)
            kept["attributes"] = texts | ({} if is_new else rest) | {"tabs": tabs}
        return kept


def _error(status: int, message: str) -> Answer:
    return Answer(status, {"statusCode": status, "error": "x", "message": message})


def _file(request: Request) -> list[dict[str, Any]]:
    """Return the lines of the file of a form."""
    form = email.message_from_bytes(f"Content-Type: {request.headers['content-type']}\n\n".encode() + request.body)
    (part,) = form.get_payload()
    assert part.get_param("name", header="content-disposition") == "file"
    assert part.get_filename().endswith(".ndjson")
    return [json.loads(line) for line in part.get_payload(decode=True).decode().splitlines()]
