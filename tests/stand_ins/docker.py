"""The program `docker`, as far as the kit asks it: an engine that keeps one project's containers in a file.

`place` puts it on a PATH. What it was asked is in the file too; a service named in `broken` does not start.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ONE_SHOT = ("users", "setup", "kibana-setup")
STATE = "DOCKER_STAND_IN"
EMPTY: dict[str, Any] = {
    "asked": [],
    "containers": {},
    "volumes": [],
    "broken": [],
    "engine": True,
    "compose": "2.40.3",
}


def place(folder: Path) -> Path:
    """Put the program into a folder, and return the file of its state."""
    program, state = folder / "docker", folder / "docker.json"
    program.write_text(f'#!/bin/sh\n{STATE}={state} exec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)
    state.write_text(json.dumps(EMPTY))
    return state


def main(words: list[str]) -> None:
    path = Path(os.environ[STATE])
    state = json.loads(path.read_text())
    state["asked"].append(" ".join(words))
    try:
        print(_answer(state, words), end="")
    finally:
        path.write_text(json.dumps(state))


def _answer(state: dict[str, Any], words: list[str]) -> str:
    if not state["engine"] and words[:2] != ["compose", "version"]:
        sys.exit("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?")
    match words:
        case ["info", *_]:
            return "28.2.2\n"
        case ["compose", *rest] if state["compose"] is None:
            if flag := next((word for word in rest if word.startswith("-")), None):  # taken for one of docker's own
                usage = "Usage:  docker [OPTIONS] COMMAND [ARG...]\n\nRun 'docker --help' for more information"
                sys.exit(f"unknown flag: {flag}\n\n{usage}")
            sys.exit("docker: unknown command: docker compose\n\nRun 'docker --help' for more information")
        case ["compose", "version"]:
            return f"Docker Compose version v{state['compose']}\n"
        case ["compose", "config", "--services"]:
            return "".join(f"{name}\n" for name in _services())
        case ["compose", "--profile", "*", "config", "--format", "json"]:
            return json.dumps({"volumes": {"agent": {"name": f"{Path.cwd().name}_agent"}}})
        case ["compose", "up", "--detach", "--wait", *rest]:
            return _up(state, [word for word in rest if not word.startswith("--")])
        case ["compose", "ps", "--all", "--quiet", service]:
            return "c0ffee\n" if service in state["containers"] else ""
        case ["compose", "ps", "--all", "--quiet"]:
            return "".join(f"c0ffee-{name}\n" for name in state["containers"])
        case ["inspect", *ids]:
            return json.dumps([state["containers"][number.removeprefix("c0ffee-")] for number in ids])
        case ["compose", "rm", "--stop", "--force", service]:
            del state["containers"][service]
            return ""
        case ["volume", "rm", "--force", name]:
            state["volumes"] = [volume for volume in state["volumes"] if volume != name]
            return f"{name}\n"
    sys.exit(f"docker: unknown command: {words}")


def _up(state: dict[str, Any], named: list[str]) -> str:
    for name, service in _services().items():
        if named and name not in named:
            continue
        status, code = ("exited", name in state["broken"]) if name in (*ONE_SHOT, *state["broken"]) else ("running", 0)
        paths = [Path(file["path"]) for file in service.get("env_file", [])]
        environment = [line for path in paths if path.exists() for line in path.read_text().splitlines()]
        state["containers"][name] = {
            "Config": {"Labels": {"com.docker.compose.service": name}, "Env": environment},
            "State": {"Status": status, "ExitCode": int(code)},
        }
        if code:
            sys.exit(f"container {name}-1 exited (1)")
    state["volumes"].append(f"{Path.cwd().name}_agent")
    return ""


def _services() -> dict[str, Any]:
    """Return the active services."""
    profiles = {*re.search(r"^COMPOSE_PROFILES=(.*)$", Path(".env").read_text(), flags=re.MULTILINE)[1].split(",")}
    services = yaml.safe_load(Path("docker-compose.yml").read_text())["services"]
    return {
        name: service
        for name, service in services.items()
        if not service.get("profiles") or profiles & {*service["profiles"]}
    }


if __name__ == "__main__":
    main(sys.argv[1:])
