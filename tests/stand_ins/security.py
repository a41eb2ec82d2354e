"""Elasticsearch's security, as far as the kit asks it and the test server has none: roles by API, API keys."""

import base64
import time
from typing import Any

from tests.stand_ins.recording import Answer, Recording, Request

HEADERS = (("x-elastic-product", "Elasticsearch"), ("content-type", "application/json"))
DAY_MS = 86_400_000


class Security(Recording):
    """A server that keeps roles and makes keys; `cluster` has the privileges of its login."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: dict[str, dict[str, Any]] = {}
        self.has_all = True  # on indices
        self.login_roles = ["someone"]
        self.cluster = {"manage_security", "read_security", "manage_own_api_key", "monitor"}

    def answer(self, request: Request) -> Answer:
        match request.method, request.path.strip("/").split("/")[1:]:
            case "GET", ["role", names]:
                if not self.cluster & {"read_security", "manage_security"}:
                    return _forbidden("role/get", "read_security,manage_security,all")
                found = {name: self.roles[name] for name in names.replace("%2C", ",").split(",") if name in self.roles}
                return _json(200 if found else 404, found)
            case "PUT", ["role", name]:
                if "manage_security" not in self.cluster:
                    return _forbidden("role/put", "manage_security,all")
                is_new = name not in self.roles
                self.roles[name] = _filled_in(request.json)
                return _json(200, {"role": {"created": is_new}})
            case "POST", ["user", "_has_privileges"]:
                wanted = set(request.json.get("cluster", ()))
                grants = request.json.get("index", ())
                has_all = (self.has_all or not grants) and wanted <= self.cluster
                cluster = {name: name in self.cluster for name in wanted}
                index = {
                    name: dict.fromkeys(grant["privileges"], self.has_all)
                    for grant in grants
                    for name in grant["names"]
                }
                return _json(
                    200, {"username": "tester", "has_all_requested": has_all, "cluster": cluster, "index": index}
                )
            case "GET", ["_authenticate"]:
                return _json(200, {"username": "tester", "roles": self.login_roles})
            case "PUT", ["api_key"]:
                days = int(request.json["expiration"].removesuffix("d"))
                key = {"id": "x1", "name": request.json["name"], "api_key": "s3cret"}
                encoded = base64.b64encode(b"x1:s3cret").decode()
                until = int(time.time() * 1_000) + days * DAY_MS
                return _json(200, key | {"expiration": until, "encoded": encoded})
        return _json(400, {"error": f"no handler found for uri [{request.path}] and method [{request.method}]"})


def _filled_in(role: dict[str, Any]) -> dict[str, Any]:
    """Return a role as the server gives it back."""
    grants = [grant | {"allow_restricted_indices": False} for grant in role["indices"]]
    rest = {"applications": [], "run_as": [], "transient_metadata": {"enabled": True}}
    return {"cluster": []} | role | {"indices": grants} | rest


def _forbidden(action: str, privileges: str) -> Answer:
    reason = (
        f"action [cluster:admin/xpack/security/{action}] is unauthorized for user [tester] with effective roles [x], "
        f"this action is granted by the cluster privileges [{privileges}]"
    )
    error = {"type": "security_exception", "reason": reason}
    return _json(403, {"error": error | {"root_cause": [error]}, "status": 403})


def _json(status: int, body: Any) -> Answer:
    return Answer(status, body, HEADERS)
