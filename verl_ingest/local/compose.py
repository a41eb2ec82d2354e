"""The stack of docker-compose.yml: whether Docker can run it, its passwords, its Elasticsearch."""

import secrets
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from verl_ingest.errors import KitError

URL = "http://localhost:9200"
USERNAME = "elastic"


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


def write_passwords(folder: Path) -> Path:
    """Return the folder's .env; where there is none, write it from .env.example with random passwords, mode 0600."""
    path = folder / ".env"
    if not path.exists():
        lines = (folder / ".env.example").read_text(encoding="utf-8").splitlines()
        filled = [f"{line}{secrets.token_hex(16)}" if line.endswith("_PASSWORD=") else line for line in lines]
        path.touch(mode=0o600)
        path.write_text("\n".join(filled) + "\n", encoding="utf-8")
    return path


def start(folder: Path) -> Login:
    """Start the stack's Elasticsearch and wait until it is healthy. Raises KitError when Docker fails."""
    environment = write_passwords(folder)
    command = ["docker", "compose", "up", "--detach", "--wait", "elasticsearch"]
    if subprocess.run(command, cwd=folder).returncode != 0:
        raise KitError(f"`{' '.join(command)}` failed; its output above says why (docker compose logs elasticsearch).")
    values = dict(line.split("=", 1) for line in environment.read_text(encoding="utf-8").splitlines() if "=" in line)
    return Login(URL, USERNAME, values["ELASTIC_PASSWORD"])


if __name__ == "__main__":
    print(f"passwords: {write_passwords(Path.cwd())}", file=sys.stderr)
