"""Grafana, as far as `apply` asks it: health, folders, data sources, dashboards and their history."""

import copy
from typing import Any

from tests.stand_ins.recording import Answer, Recording, Request

TOKEN = "glsa_x"
SAVE = "POST /api/dashboards/db"


class Grafana(Recording):
    """A Grafana of some version; from 12 on it hands out old dashboards in its own newer form."""

    def __init__(self, version: str = "11.6.0") -> None:
        super().__init__()
        self.version = version
        self.is_new = int(version.split(".")[0]) >= 12
        self.folders: dict[str, Any] = {}
        self.sources: dict[str, Any] = {}
        self.secrets: dict[str, Any] = {}
        self.dashboards: dict[str, list[dict[str, Any]]] = {}  # versions, the newest last
        self.provisioned: set[str] = set()

    def answer(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if path == "/api/health":
            return Answer(200, {"commit": "x", "database": "ok", "version": self.version})
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return Answer(401, {"message": "Unauthorized", "messageId": "auth.unauthorized", "statusCode": 401})
        match request.method, path.strip("/").split("/")[1:]:
            case "GET", ["folders", uid]:
                return _found(self.folders.get(uid), "folder not found")
            case "POST", ["folders"]:
                self.folders[request.json["uid"]] = request.json | {"id": 1, "version": 1}
                return Answer(200, self.folders[request.json["uid"]])
            case "GET", ["datasources", "uid", uid]:
                return _found(self.sources.get(uid), "Data source not found")
            case ("POST", ["datasources"]) | ("PUT", ["datasources", "uid", _]):
                return self._keep_source(request)
            case "GET", ["dashboards", "uid", uid]:
                return _found(self._dashboard(uid), "Dashboard not found")
            case "GET", ["dashboards", "uid", uid, "versions"]:
                history = [
                    {"version": number, "message": version["message"], "createdBy": "sa-1-verl"}
                    for number, version in enumerate(self.dashboards[uid], start=1)
                ][::-1]
                return Answer(200, {"continueToken": "", "versions": history} if self.is_new else history)
            case "POST", ["dashboards", "db"]:
                return self._save(request.json)
        return Answer(404, {"message": "Not found"})

    def edit(self, uid: str, title: str, message: str = "") -> None:
        """Save a dashboard as a user does in the browser."""
        newest = self.dashboards[uid][-1]
        self.dashboards[uid].append(newest | {"dashboard": newest["dashboard"] | {"title": title}, "message": message})

    def _keep_source(self, request: Request) -> Answer:
        body = request.json
        exists, is_new = body["uid"] in self.sources, request.method == "POST"
        if exists and is_new:
            return Answer(409, {"message": "data source with the same name already exists"})
        if exists and self.sources[body["uid"]]["readOnly"]:
            return Answer(403, {"message": "Cannot update read-only data source"})
        self.secrets[body["uid"]] = body.pop("secureJsonData", {})
        servers_own = {"id": 1, "orgId": 1, "typeLogoUrl": "", "user": "", "database": "", "isDefault": False}
        fields = dict.fromkeys(self.secrets[body["uid"]], True)
        self.sources[body["uid"]] = servers_own | body | {"readOnly": False, "version": 1, "secureJsonFields": fields}
        return Answer(200, {"id": 1, "message": "Datasource added"})

    def _dashboard(self, uid: str) -> dict[str, Any] | None:
        if uid not in self.dashboards:
            return None
        versions = self.dashboards[uid]
        dashboard = copy.deepcopy(versions[-1]["dashboard"]) | {"id": 7, "version": len(versions)}
        if self.is_new:
            dashboard |= {"schemaVersion": 42, "preload": False}
        return {"meta": {"provisioned": uid in self.provisioned, "folderUid": "verl"}, "dashboard": dashboard}

    def _save(self, body: dict[str, Any]) -> Answer:
        uid = body["dashboard"]["uid"]
        if body["folderUid"] not in self.folders:
            return Answer(400, {"message": "folder not found"})
        if uid in self.provisioned:
            return Answer(400, {"message": "Cannot save provisioned dashboard"})
        if uid in self.dashboards and not body["overwrite"]:
            return Answer(412, {"message": "A dashboard with the same uid already exists", "status": "name-exists"})
        self.dashboards.setdefault(uid, []).append({"dashboard": body["dashboard"], "message": body["message"]})
        return Answer(200, {"id": 7, "uid": uid, "status": "success", "version": len(self.dashboards[uid])})


def _found(body: Any, message: str) -> Answer:
    return Answer(404, {"message": message, "status": "not-found"}) if body is None else Answer(200, body)
