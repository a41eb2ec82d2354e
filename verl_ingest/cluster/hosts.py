"""Plain hosts, reached over ssh by Ansible: an agent as a systemd service, or by agent.sh where no systemd runs."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from verl_ingest.checks.agents import judge_buffer, judge_version
from verl_ingest.checks.check import Check
from verl_ingest.cluster import hosts_files
from verl_ingest.cluster.hosts_play import Event, finished, play
from verl_ingest.cluster.mark import RUN, Mark
from verl_ingest.cluster.target import Node, answering
from verl_ingest.context.words import listed, several
from verl_ingest.edge import fluentbit
from verl_ingest.errors import SettingsError
from verl_ingest.lag import metrics
from verl_ingest.settings import Settings

_OLDEST = (5, 1)  # of the versions of Fluent Bit whose configuration the kit renders
_START = re.compile(r"fluentbit_process_start_time_seconds\S* = (\d+)")
_CLOCK_S = 2  # of a start, as a file's time and Fluent Bit itself round it


class Hosts:
    """The hosts of deploy.hosts.inventory."""

    name = "hosts"
    hands_out_secret = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def files(self) -> Mapping[str, str]:
        """Return playbooks, the agent's folder, the unit, agent.sh, and units for the machine that has the kit."""
        return hosts_files.files(self.settings)

    def check(self, folder: Path) -> Sequence[Check]:
        """Look at each host: does it answer, Fluent Bit's version, room, the logs, the way to Elasticsearch."""
        events = sorted(self._play(folder, "look"), key=lambda event: event.host)  # they answer in any order
        looks = {event.host: _facts(event.said) for event in events if event.task == "look" and event.state == "ok"}
        return [*_reached(events, looks), *self._judge(looks), *self._elasticsearch(events)]

    def plan(self, folder: Path) -> Sequence[str]:
        """Return a line for each thing that would change, with its hosts."""
        hosts: dict[str, list[str]] = {}
        for event in finished(self._deploy(folder, "--check", "--diff")):
            if event.state == "changed":
                files = f" ({several(event.said.splitlines())})" if event.task == "configuration" else ""
                hosts.setdefault(f"{event.task}{files}", []).append(event.host)
        return [f"{change}: {several(found)}" for change, found in hosts.items()]

    def roll_out(self, folder: Path) -> Iterator[str]:
        """Yield a line for each host that was changed, as soon as its agent answers."""
        return _changes(self._deploy(folder))

    def remove(self, folder: Path, *, state: bool) -> Iterator[str]:
        """Yield a line for each host that something was removed from."""
        return _changes(self._play(folder, "undeploy", "--extra-vars", json.dumps({"remove_state": state})))

    def nodes(self, folder: Path) -> Sequence[Node]:
        """Ask every host's agent for its counters; a host is called what it calls itself, as its records do."""
        facts: dict[str, dict[str, list[str]]] = {}
        found: dict[str, Node] = {}
        for event in self._play(folder, "metrics"):
            if event.task == "agent" and event.state == "ok":
                facts[event.host] = _facts(event.said)
            elif event.state == "unreachable" or event.host not in facts:
                problem = f"The host {event.why}" if event.state == "unreachable" else event.why
                found[event.host] = Node(event.host, None, problem[:1].upper() + problem[1:])
            elif event.state == "failed" or event.task == "counters":
                found[event.host] = self._node(facts[event.host], event)
        return [found[host] for host in sorted(found)]

    def tried(self, folder: Path) -> Sequence[str]:
        """Return every node, each of which must have an agent that answers."""
        return answering(self.nodes(folder))

    def write(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Append each host's mark to its file there."""
        self._mark(folder, "write", marks)

    def erase(self, folder: Path, marks: Mapping[str, Mark]) -> None:
        """Remove the files of the marks, and the folders that were made for them."""
        self._mark(folder, "erase", marks)

    def _play(self, folder: Path, playbook: str, *options: str) -> Iterator[Event]:
        inventory = self.settings.deploy.hosts.inventory
        if inventory is None:
            raise SettingsError("deploy.hosts.inventory is not set; set it to a file with the name of a host a line.")
        if not inventory.exists():
            raise SettingsError(
                f"{inventory.absolute()}: no such file; deploy.hosts.inventory should name Ansible's inventory."
            )
        return play(folder / f"{playbook}.yml", inventory, options=options)

    def _deploy(self, folder: Path, *options: str) -> Iterator[Event]:
        secret = self.settings.deploy.secret_file
        if secret and not secret.is_file():
            what = "it is a folder" if secret.is_dir() else "no such file"
            raise SettingsError(
                f"{secret.absolute()}: {what}; deploy.secret_file should name the file with the agents' secret."
            )
        return self._play(folder, "deploy", *options)

    def _mark(self, folder: Path, action: str, marks: Mapping[str, Mark]) -> None:
        """Run the playbook of marks; they go by a file, since a thousand are more than a command line takes."""
        values = {
            "action": action,
            "marks": {node: {"path": m.path, "line": m.line, "folders": _made(m.path)} for node, m in marks.items()},
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            for _ in finished(self._play(folder, "marks", "--extra-vars", f"@{file.name}")):
                pass

    def _node(self, facts: Mapping[str, Sequence[str]], event: Event) -> Node:
        """Return a host with its counters, if it is the agent's own service that gave them."""
        [name], [log], port = facts["node"], facts["log"], self.settings.agent.metrics_port
        if orphan := facts.get("orphan"):
            problem = f"{orphan[0].partition(':')[0]}; `verl-ingest deploy` starts it anew."
        elif stopped := facts.get("stopped"):
            why = f" ({stopped[0]})" if stopped[0] else ""
            problem = f"The agent does not run{why}; `verl-ingest deploy` starts it, and {log} has its last words."
        elif event.state == "failed":
            problem = f"The agent runs, but does not answer on port {port}; {log} says why."
        elif (start := _START.search(event.said)) and int(start[1]) >= int(facts["since"][0]) - _CLOCK_S:
            return Node(name, metrics.parse(event.said))
        else:
            problem = f"Another program answers on port {port}; set agent.metrics_port to a free one, and deploy."
        return Node(name, None, problem)

    def _judge(self, looks: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Check]:
        """Yield a verdict on each matter, of the hosts that share it."""
        verdicts: dict[Check, list[str]] = {}
        for host, facts in looks.items():
            for check in (self._version(facts), self._room(facts), *self._ports(facts), *self._logs(facts)):
                verdicts.setdefault(check, []).append(host)
        for check, hosts in verdicts.items():
            yield Check(check.name, check.verdict, f"{several(hosts)}: {check.found}", check.remedy)
        called = Counter(facts["node"][0] for facts in looks.values())
        for node in [node for node, count in called.items() if count > 1]:
            twins = sorted(host for host, facts in looks.items() if facts["node"][0] == node)
            yield Check(
                "names",
                "wrong",
                f"{listed(twins)} {'both' if len(twins) == 2 else 'all'} call themselves {node}, so their records "
                "can't be told apart.",
                "name a host once in the inventory, or give each a name (hostnamectl)",
            )

    def _version(self, facts: Mapping[str, Sequence[str]]) -> Check:
        hosts = self.settings.deploy.hosts
        version = facts["version"][0]
        if not version:
            found = f"There is no Fluent Bit at {hosts.fluent_bit}."
            return Check("Fluent Bit", "wrong", found, "install it there, or set deploy.hosts.fluent_bit")
        if tuple(map(int, version.split(".")[:2])) < _OLDEST:
            found = f"{version} is too old for what the kit renders."
            return Check("Fluent Bit", "wrong", found, "update Fluent Bit to 5.1.3 or later")
        return judge_version(version, self.settings)

    def _room(self, facts: Mapping[str, Sequence[str]]) -> Check:
        free, used = (int(facts[name][0] or 0) * 1024 for name in ("free_kb", "used_kb"))
        check = judge_buffer(fluentbit.buffer_bytes(self.settings), used, free)
        # Hosts differ by some bytes; those that are fine need no line of their own.
        return check if check.verdict != "fine" else Check(check.name, "fine", "There is room for what may wait.")

    def _ports(self, facts: Mapping[str, Sequence[str]]) -> Iterator[Check]:
        for name in facts.get("taken", ()):
            found = f"Port {getattr(self.settings.agent, name)} is taken there by another program."
            yield Check("ports", "wrong", found, f"set agent.{name} to a port that is free")

    def _logs(self, facts: Mapping[str, Sequence[str]]) -> Iterator[Check]:
        user = self.settings.deploy.hosts.user
        if "user" in facts:
            yield Check("logs", "unknown", f"Whether {user} may read the logs is seen once deploy has made that user.")
        elif closed := facts.get("closed"):
            none = facts["readable"][0] == "0"
            yield Check(
                "logs",
                "wrong" if none else "watch",
                f"{user} may read {'none' if none else 'not all'} of the logs: closed to it are {several(closed)}.",
                "make it a member of the group that may (usermod -aG), or set deploy.hosts.group to that group",
            )
        else:
            yield Check("logs", "fine", f"{user} may read them." if facts["readable"][0] != "0" else "None yet.")

    def _elasticsearch(self, events: Sequence[Event]) -> Iterator[Check]:
        reached = {event.host: event.said == "yes" for event in events if event.task == "reached"}
        url = self.settings.elasticsearch_url
        if away := [host for host, answer in reached.items() if not answer]:
            remedy = "open the way in the network, or set elasticsearch_url to an address that every host reaches"
            yield Check("way to Elasticsearch", "wrong", f"{several(away)}: {url} can't be reached from there.", remedy)
        elif reached:
            yield Check("way to Elasticsearch", "fine", f"{several(list(reached))}: {url} can be reached from there.")


def _changes(events: Iterator[Event]) -> Iterator[str]:
    """Yield a line for each host that something was changed on, as soon as it is done."""
    changed: dict[str, list[str]] = {}
    for event in finished(events):
        if event.state == "changed":
            changed.setdefault(event.host, []).append(event.task)
        elif event.task == "done" and event.host in changed:
            yield f"{event.host}: {', '.join(changed[event.host])}{event.said}"


def _reached(events: Sequence[Event], looks: Mapping[str, Mapping[str, Sequence[str]]]) -> Iterator[Check]:
    for event in events:
        if event.state in ("failed", "unreachable"):
            found, _, remedy = event.failure.partition("; ")
            yield Check("hosts", "wrong", f"{found}.", remedy.rstrip("."))
    if looks:
        yield Check("hosts", "fine", f"{several(list(looks))} can be reached.")


def _facts(text: str) -> dict[str, list[str]]:
    """Return what look.sh says: name -> values; a name may come more than once."""
    facts: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        facts.setdefault(name, []).append(value)
    return facts


def _made(path: str) -> list[str]:
    """Return the folders of a mark's file that are its run's alone, the deepest first."""
    return [str(folder) for folder in PurePosixPath(path).parents if RUN in str(folder)]
