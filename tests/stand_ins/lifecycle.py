"""Elasticsearch with index lifecycle management, which the servers of the tests lack: the rest is the real one's.

What it answers about policies is as the real module does, down to how it writes an age and what it adds.
"""

import copy
import json
import re
import urllib.error
import urllib.request
from typing import Any

from tests.stand_ins.recording import Answer, Recording, Request

POLICY = re.compile(r"/_ilm/policy/(?P<name>[^/?]+)")
COMPONENT = "/_component_template/verl@lifecycle"
_ACTIONS = {
    "hot": {"set_priority", "unfollow", "rollover", "readonly", "shrink", "forcemerge", "searchable_snapshot"},
    "warm": {"set_priority", "unfollow", "readonly", "allocate", "migrate", "shrink", "forcemerge", "downsample"},
}


class WithLifecycle(Recording):
    """Hands requests on to the server at `url`, and answers those about policies."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.behind = url
        self.policies: dict[str, dict[str, Any]] = {}
        self.component: dict[str, Any] | None = None

    def answer(self, request: Request) -> Answer:
        path = urllib.request.unquote(request.path)
        if found := POLICY.match(path):
            return _product(self._policy(request, found["name"]))
        if path.startswith(COMPONENT) and request.method == "PUT":  # the real one knows no setting of this name
            assert request.json["template"]["settings"]["index.lifecycle.name"] in self.policies
            self.component = request.json
            return _product(Answer(200, {"acknowledged": True}))
        answer = self._handed_on(request)
        if path.startswith("/_component_template") and self.component is not None:
            component = {"name": "verl@lifecycle", "component_template": self.component}
            answer.body["component_templates"].append(component)
        return _product(answer)

    def _policy(self, request: Request, name: str) -> Answer:
        if request.method == "PUT":
            body = request.json["policy"]
            for phase, content in body["phases"].items():
                unknown = content["actions"].keys() - _ACTIONS[phase]
                if unknown or (phase == "hot" and "forcemerge" in content["actions"]):
                    return _refusal(400, "illegal_argument_exception", f"invalid action in phase [{phase}]")
            version = self.policies.get(name, {"version": 0})["version"] + 1
            in_use_by = {"indices": [], "data_streams": [], "composable_templates": []}
            date = "2026-11-29T20:00:00.000Z"
            self.policies[name] = {"version": version, "modified_date": date, "policy": body, "in_use_by": in_use_by}
            return Answer(200, {"acknowledged": True})
        if name not in self.policies:
            return _refusal(404, "resource_not_found_exception", f"Lifecycle policy not found: {name}")
        return Answer(200, {name: copy.deepcopy(self.policies[name])})

    def _handed_on(self, request: Request) -> Answer:
        asked = urllib.request.Request(self.behind + request.path, request.body or None, method=request.method)
        for name in ("content-type", "accept"):
            if name in request.headers:
                asked.add_header(name, request.headers[name])
        try:
            with urllib.request.urlopen(asked) as got:
                status, body = got.status, got.read()
        except urllib.error.HTTPError as error:
            status, body = error.code, error.read()
        return Answer(status, json.loads(body) if body else "")


def _refusal(status: int, kind: str, reason: str) -> Answer:
    cause = {"type": kind, "reason": reason}
    return Answer(status, {"error": {"root_cause": [cause], **cause}, "status": status})


def _product(answer: Answer) -> Answer:
    headers = (("x-elastic-product", "Elasticsearch"), ("content-type", "application/json"))
    return Answer(answer.status, answer.body, headers)
