"""Where a scenario plays: a run, its writers, one agent that tails it, one server; what was done is counted."""

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from chaos.ledger import Ledger, Log, end_of_lines
from chaos.proxy import Refusals
from chaos.server import Server
from tests import fluentbit
from tests.waiting import wait_for

SETTLE_S = 300
LET_GO_S = 120


@dataclass(frozen=True)
class Scenario:
    """One thing that happens to a run; `play` ends with the agent and the server up.

    refused_requests, refused_items: shares that a proxy before the server refuses. may_lose: why the agent may lose
    lines that are in a file; the audit must name them. may_be_gone: why lines may be lost that are in no file any more.
    Where there is no reason, none may be.
    """

    name: str
    what: str
    play: "Callable[[Scene], None]"
    lines: int
    writers: int = 2
    poll: bool = False
    pace_s: float = 2.0  # that a part of the lines is written in
    refused_requests: float = 0.0
    refused_items: float = 0.0
    may_lose: str = ""
    may_be_gone: str = ""


@dataclass
class Scene:
    """One run that is being written, tailed and disturbed; `url` is the proxy's, which the agent sends to."""

    scenario: Scenario
    place: Path
    binary: str
    server: Server
    url: str
    random: Random
    refusals: Refusals
    done: Counter[str] = field(default_factory=Counter)
    ledger: Ledger = field(default_factory=Ledger)
    agent: fluentbit.Agent | None = None

    def __post_init__(self) -> None:
        self.run_id = f"chaos-{self.scenario.name}"
        self.folder = self.place / "runs" / self.run_id
        self.folder.mkdir(parents=True)
        self.logs = [Log(self.folder / f"rank{rank}.jsonl", rank, self.ledger) for rank in range(self.scenario.writers)]
        settings = fluentbit.settings_for(self.place / "runs", self.place / "state", url=self.url)
        agent = settings.agent.model_copy(update={"poll": self.scenario.poll})
        self.settings = settings.model_copy(update={"agent": agent})

    def write(self, lines: int, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Write lines from all writers at once; `meanwhile` is called at some moment while they write."""
        share, pace_s = lines // len(self.logs), self.scenario.pace_s
        with ThreadPoolExecutor(len(self.logs)) as pool:
            jobs = [pool.submit(log.write_slowly, share, pace_s, self.random) for log in self.logs]
            time.sleep(self.random.random() * pace_s)
            meanwhile()
            for job in jobs:
                job.result()

    def start_agent(self) -> None:
        self.agent = fluentbit.Agent(self.binary, self.place, self.settings)

    def kill_agent(self) -> None:
        self.agent.kill()
        self.agent = None
        self.done["agent killed"] += 1

    def stop_agent(self) -> None:
        self.agent.stop()
        self.agent = None
        self.done["agent stopped"] += 1

    def kill_server(self) -> None:
        self.server.kill()
        self.done["server killed"] += 1

    def stop_server(self) -> None:
        self.server.stop()
        self.done["server stopped"] += 1

    def settle(self) -> None:
        """Wait until the agent has read every whole line of every file, and has handed everything over."""
        wait_for(self._is_settled, timeout=SETTLE_S, what=f"end of what the agent has to do ({self.agent.log})")

    def _is_settled(self) -> bool:
        return self._read_all() and not any((self.place / "state" / "storage").rglob("*.flb"))

    def _read_all(self) -> bool:
        with closing(sqlite3.connect(f"file:{self.place}/state/rank.db?mode=ro", uri=True)) as database:
            offsets = dict(database.execute("SELECT inode, offset FROM in_tail_files"))
        ends = {path.stat().st_ino: end_of_lines(path) for path in self.folder.iterdir()}
        return all(offsets.get(inode, 0) == end for inode, end in ends.items())

    def wait_until_let_go(self, log: Log) -> None:
        """Wait until the agent has closed a file that was removed."""
        opened = Path(f"/proc/{self.agent.process.pid}/fd")
        removed = f"{log.path} (deleted)"
        wait_for(
            lambda: removed not in map(os.path.realpath, opened.iterdir()),
            timeout=LET_GO_S,
            what=f"end of the agent's hold on {log.path.name}",
        )

    def close(self) -> None:
        """End the agent, whatever it is doing."""
        if self.agent:
            self.agent.kill()
