"""This machine: the stack of docker-compose.yml, in a checkout of the kit."""

import hashlib
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from verl_ingest import __version__
from verl_ingest.checks.check import Check
from verl_ingest.cluster import commands
from verl_ingest.cluster.mark import Mark
from verl_ingest.cluster.target import Node, answering
from verl_ingest.edge import folder as agent_folder
from verl_ingest.errors import KitError
from verl_ingest.lag import metrics
from verl_ingest.local import compose
from verl_ingest.settings import Deploy, Grafana, Settings

CHECKOUT = Path()  # the working folder, in which build/ is
RUNS = "/data/runs"  # where the agent's container has the folder VERL_RUNS
AGENT = "fluent-bit"
AGENTS, DASHBOARDS = "agent", "dashboards"  # the profiles of Fluent Bit; of Kibana, Grafana and Prometheus
_NO_AGENT = "COMPOSE_PROFILES in .env leaves out the agent"
OLDEST_COMPOSE, OLDEST_FLUENT_BIT = (2, 24), (5, 1, 3)
_REMEDY = "see `docker compose ps` and `docker compose logs`"
_ENVIRONMENT = "rendered.env"  # of the containers that read what is rendered
_GIVEN = "given.env"  # of those that have but passwords of .env
_HEAD = "# Rendered from settings.yml by `make up`; edit that.\n"
_SERVICE = "com.docker.compose.service"  # the label that Compose gives its containers
PAGES, KIBANA, GRAFANA = "http://127.0.0.1:9110", "http://localhost:5601", "http://localhost:3000"


class Compose:
    """The target; everything in it is done by `docker compose` in the checkout."""

    name = "compose"
    hands_out_secret = False  # the agent has the login that is in .env

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = stack(settings)
        self._node = settings.node or socket.gethostname()

    def files(self) -> Mapping[str, str]:
        """Return the agent's folder, the settings of the kit's own containers, and what these have as environment."""
        files = {f"{AGENT}/{name}": text for name, text in agent_folder.files(self._stack).items()}
        values = self._stack.model_dump(mode="json", exclude_defaults=True)
        files["settings.yml"] = _HEAD + yaml.safe_dump(values, sort_keys=False, width=120)
        files["links.env"] = _environment(
            VERL_INGEST_KIBANA_URL=self._settings.kibana_url or (KIBANA if has(DASHBOARDS) else None),
            VERL_INGEST_GRAFANA_URL=self._settings.grafana_url or (GRAFANA if has(DASHBOARDS) else None),
        )
        return files | {
            _GIVEN: _environment(RENDERED=_digest({})),
            _ENVIRONMENT: _environment(VERL_INGEST_NODE=self._node, RENDERED=_digest(files), TZ=_zone()),
        }

    def check(self, folder: Path) -> Sequence[Check]:
        """Look for Docker, Compose and the folder of runs, and at what .env and the settings say of them."""
        if not (CHECKOUT / ".env").exists():
            return [Check("stack", "wrong", "There is no .env here.", "run `make up` in a checkout of the kit first")]
        found = [*_engine(), *self._runs(), *_fluent_bit()]
        return found if has(AGENTS) else [*found, Check("agent", "watch", f"{_NO_AGENT}.", f"add {AGENTS} to it")]

    def plan(self, folder: Path) -> Sequence[str]:
        """Return a line for each service that is not as docker-compose.yml, .env and the folder say."""
        return [f"{service}: to be {what}" for service, what in _changes(folder)]

    def roll_out(self, folder: Path) -> Sequence[str]:
        """Start what is not there, start anew what has changed, and wait until all of it is healthy."""
        changes = list(_changes(folder))
        compose.up(CHECKOUT, "--build")
        return [f"{service}: {what}" for service, what in changes]

    def nodes(self, folder: Path) -> Sequence[Node]:
        """Ask the agent on its loopback port; where the stack is to have none, there is no node."""
        if not has(AGENTS):
            return []
        try:
            return [Node(self._node, metrics.read(self._stack))]
        except KitError as error:
            return [Node(self._node, None, _why(error))]

    def tried(self, folder: Path) -> Sequence[str]:
        """Return every node, each of which must have an agent that answers."""
        if not has(AGENTS):
            raise KitError(f"{_NO_AGENT}, so no record can arrive; add {AGENTS} to it.")
        return answering(self.nodes(folder))

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Append each mark to its file below VERL_RUNS."""
        for mark in marks.values():
            path = _on_host(mark.path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(f"{mark.line}\n")
            except OSError as error:
                raise KitError(f"{path}: this can't be written ({error.strerror}); run this as the owner.") from None

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Remove the files of the marks, and their folders where nothing else is in them."""
        runs = _runs_folder()
        for mark in marks.values():
            path = _on_host(mark.path)
            path.unlink(missing_ok=True)
            for parent in path.parents:
                if parent == runs or not parent.is_dir() or any(parent.iterdir()):
                    break
                parent.rmdir()

    def remove(self, folder: Path, *, state: bool) -> Sequence[str]:
        """Stop and remove the agent's container, with `state` its volume too; `make down` is for the whole stack."""
        removed = []
        if _compose("ps", "--all", "--quiet", AGENT):
            _compose("rm", "--stop", "--force", AGENT)
            removed.append(f"{AGENT}: removed")
        if state:
            every = _compose("--profile", "*", "config", "--format", "json")  # else volumes that none uses are left out
            volume = json.loads(every)["volumes"]["agent"]["name"]
            _docker("volume", "rm", "--force", volume)  # force: it may not be there
            removed.append(f"volume {volume}: removed")
        return removed

    def _runs(self) -> Iterator[Check]:
        folder = _runs_folder()
        if not folder.is_dir():
            yield Check("runs", "wrong", f"There is no folder {folder}.", "make it, or set VERL_RUNS in .env")
        paths = [path for family in self._settings.paths.model_dump().values() for path in family]
        if outside := [path for path in paths if not path.startswith(f"{RUNS}/")]:
            yield Check(
                "paths",
                "wrong",
                f"The agent's container has only {RUNS}, which is VERL_RUNS on this machine, and not {outside[0]}.",
                f"begin each of `paths` with {RUNS}",
            )


def stack(settings: Settings) -> Settings:
    """Return the settings of what runs in the stack: addresses, ports and logins are those of docker-compose.yml.

    There is no secret in them: the containers have theirs from files.
    """
    agent = settings.agent.model_copy(
        update={
            "state": "/var/lib/verl-ingest",
            "username": "verl_writer",
            "secret_file": "/run/secrets/writer_password",
            "forward_listen": "0.0.0.0",
            "forward_port": 24224,
            "metrics_listen": "0.0.0.0",
            "metrics_port": 2020,
            "fluent_bit_513": True,
        }
    )
    return settings.model_copy(
        update={
            "elasticsearch_url": "http://elasticsearch:9200",
            "elasticsearch_username": None,
            "elasticsearch_password": None,
            "elasticsearch_api_key": None,
            "elasticsearch_ca_certs": None,
            "agent": agent,
            "service": settings.service.model_copy(update={"username": None, "password": None}),
            "service_url": settings.service_url or PAGES,
            "kibana_url": None,  # not as browsers reach it: `apply` asks it from within
            "grafana_url": None,
            "grafana": Grafana(),
            "deploy": Deploy(),
        }
    )


def _environment(**variables: str | None) -> str:
    """Return the text of an env_file."""
    return _HEAD + "".join(f"{name}={value}\n" for name, value in variables.items() if value)


def has(profile: str) -> bool:
    """Tell whether .env lets the stack have the services of a profile."""
    return profile in compose.values(CHECKOUT).get("COMPOSE_PROFILES", "").split(",")


def _digest(files: Mapping[str, str]) -> str:
    """Return a digest of what the containers are started with: a change of it makes Compose start them anew."""
    given = [path.read_text() for name in ("docker-compose.yml", ".env") if (path := CHECKOUT / name).exists()]
    return hashlib.sha256(repr((__version__, given, sorted(files.items()))).encode()).hexdigest()[:16]


def _zone() -> str:
    """Return the name of this machine's time zone, which its containers do not know; empty where it has none."""
    return str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]


def _runs_folder() -> Path:
    return CHECKOUT / compose.values(CHECKOUT)["VERL_RUNS"]


def _on_host(path: str) -> Path:
    """Return where a path of the agent's container lies on this machine."""
    return _runs_folder() / Path(path).relative_to(RUNS)


def _compose(*arguments: str) -> str:
    try:
        return _docker("compose", *arguments)
    except KitError:
        _version()  # where the plugin is missing, Docker takes its flags for its own, and complains of those
        raise


def _why(error: KitError) -> str:
    """Say why an agent does not answer: Compose is missing, or what its containers tell."""
    try:
        _version()
    except KitError as missing:
        return str(missing)
    return f"{str(error).partition(';')[0]}; {_REMEDY}."


def _docker(*arguments: str) -> str:
    command = ["docker", *arguments]
    what = f"`{' '.join(command[:3])}`"
    return commands.run(command, what=what, remedy=_REMEDY, folder=CHECKOUT)


def _engine() -> Iterator[Check]:
    engine = commands.run(
        ["docker", "info", "--format", "{{.ServerVersion}}"],
        what="Asking Docker",
        remedy="start it, or let this user use it (group docker)",
        timeout_s=20,
    ).strip()
    version, oldest = _version(), _dotted(OLDEST_COMPOSE)
    if _numbers(version) < OLDEST_COMPOSE:
        yield Check("Docker", "wrong", f"Docker Compose is {version}.", f"update it to {oldest} or later")
    else:
        yield Check("Docker", "fine", f"Docker {engine} answers; Compose is {version}.")


def _version() -> str:
    """Return Compose's version, such as 2.40.3; raises KitError where Docker has no Compose."""
    oldest = _dotted(OLDEST_COMPOSE)
    printed = commands.run(
        ["docker", "compose", "version"],
        what="Asking for Docker Compose",
        remedy=f"this needs the Compose plugin of Docker, {oldest} or later; install docker-compose-plugin",
    )
    return printed.split()[-1].removeprefix("v")


def _fluent_bit() -> Iterator[Check]:
    version = compose.values(CHECKOUT)["FLUENT_BIT_VERSION"]
    if _numbers(version) < OLDEST_FLUENT_BIT:
        remedy = f"set it to {_dotted(OLDEST_FLUENT_BIT)} or later"
        yield Check("Fluent Bit", "wrong", f"FLUENT_BIT_VERSION in .env is {version}.", remedy)
    else:
        yield Check("Fluent Bit", "fine", f"The agent is Fluent Bit {version}.")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _changes(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each service that `docker compose up` would touch, and what becomes of it.

    Containers that read what is rendered, or .env, have its digest in their environment.
    """
    rendered = "".join((folder / name).read_text(encoding="utf-8") for name in (_ENVIRONMENT, _GIVEN)).splitlines()
    found = _compose("ps", "--all", "--quiet").split()
    shown = _docker("inspect", *found) if found else "[]"
    there = {container["Config"]["Labels"][_SERVICE]: container for container in json.loads(shown)}
    for service in _compose("config", "--services").split():
        if service not in there:
            yield service, "started"
            continue
        state, environment = there[service]["State"], there[service]["Config"]["Env"]
        if any(line.startswith("RENDERED=") and line not in rendered for line in environment):
            yield service, "started anew, since what it is started with has changed"
        elif state["Status"] != "running" and (state["Status"], state["ExitCode"]) != ("exited", 0):
            yield service, f"started again, since it is {state['Status']}"
