"""The stack of docker-compose.yml: whether Docker can run it, its .env with the passwords, its start."""

import os
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_ingest.errors import KitError

URL = "http://localhost:9200"
USERNAME = "elastic"
_ADDED = "# Of a newer version of the kit; .env.example says what each is."
_RANDOM = ("_PASSWORD", "_KEY")  # how the names of what is random end


@dataclass(frozen=True)
class Login:
    """Where the stack's Elasticsearch answers, and to whom."""

    url: str
    username: str
    password: str


def is_available() -> bool:
    """Tell whether a Docker engine answers; the client alone is no use."""
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def write_environment(folder: Path) -> Path:
    """Return the folder's .env, readable by its owner alone, with all that .env.example has.

    Passwords that are not there yet are random; what is there stays, also where .env.example has another value now.
    """
    example, path = folder / ".env.example", folder / ".env"
    path.touch(mode=0o600)
    path.chmod(0o600)  # an older one may be open to others
    text = path.read_text(encoding="utf-8") or example.read_text(encoding="utf-8")
    lines = [_filled(line) for line in text.splitlines()]
    missing = {name: value for name, value in _assigned(example).items() if name not in _names(lines)}
    if missing:
        lines += ["", _ADDED, *(_filled(f"{name}={value}") for name, value in missing.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def values(folder: Path) -> Mapping[str, str]:
    """Return the variables of docker-compose.yml: the environment's, else those of .env, else of .env.example."""
    written = _assigned(folder / ".env.example") | _assigned(folder / ".env")
    return {name: os.environ.get(name, value) for name, value in written.items()}


def start(folder: Path) -> Login:
    """Start the stack's Elasticsearch and wait until it is healthy. Raises KitError when Docker fails."""
    write_environment(folder)
    up(folder, "elasticsearch")
    return Login(URL, USERNAME, values(folder)["ELASTIC_PASSWORD"])


def up(folder: Path, *arguments: str) -> None:
    """Start the stack, or the services that are named, and wait until they are healthy; Docker shows how it goes on.

    Raises KitError when Docker fails.
    """
    command = ["docker", "compose", "up", "--detach", "--wait", *arguments]
    if subprocess.run(command, cwd=folder).returncode != 0:
        raise KitError(
            f"`{' '.join(command)}` failed; its output above says why (docker compose logs SERVICE tells more)."
        )


def _assigned(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name: value.strip("'\"") for name, value in pairs}


def _names(lines: list[str]) -> set[str]:
    return {line.partition("=")[0] for line in lines}


def _filled(line: str) -> str:
    """Return a line of .env with a random value, where it is of a password that has none."""
    name, equals, value = line.partition("=")
    return f"{line}{secrets.token_hex(16)}" if equals and not value and name.endswith(_RANDOM) else line
