"""The files of a server's config folder, as text."""

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class User:
    """A user of the file realm; naming one turns security on."""

    name: str
    password: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Tls:
    """What makes HTTP safe, each as the text of a PEM file: the server's certificate and key, who signed it."""

    certificate: str
    key: str
    authority: str


def files(*, port: int, users: Sequence[User], roles: Mapping[str, Any], tls: Tls | None) -> dict[str, str]:
    """Return the text of each config file by name; `roles` are role bodies by name, port 0 takes a free one."""
    settings = {
        "cluster.name": "verl-ingest",
        "node.name": "local",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "discovery.type": "single-node",
        "node.portsfile": True,  # with port 0 the system picks, and logs/http.ports tells
        "cluster.routing.allocation.disk.threshold_enabled": False,
        "xpack.security.enabled": bool(users),
    }
    texts = {}
    if tls:
        texts = {"http.crt": tls.certificate, "http.key": tls.key}
        settings |= {
            "xpack.security.http.ssl.enabled": True,
            "xpack.security.http.ssl.certificate": "http.crt",
            "xpack.security.http.ssl.key": "http.key",
        }
    return texts | {
        "elasticsearch.yml": _yaml(settings),
        "roles.yml": _yaml(roles),  # read line by line: a role that begins a line may not end on another
        "users": "".join(f"{user.name}:{_hash(user.password)}\n" for user in users),
        "users_roles": "".join(f"{role}:{user.name}\n" for user in users for role in user.roles),
    }


def _yaml(entries: Mapping[str, Any]) -> str:
    """Write one line an entry; JSON is YAML."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in entries.items())


def _hash(password: str) -> str:
    """Hash as Elasticsearch's PBKDF2 does, which spares a run of its slow `elasticsearch-users` tool."""
    salt, rounds = secrets.token_bytes(32), 10_000
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds, dklen=32)
    return f"{{PBKDF2}}{rounds}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
