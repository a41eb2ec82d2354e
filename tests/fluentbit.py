"""Runs the real Fluent Bit on a rendered folder: free ports, bounded waits, the end of its log in each failure."""

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from verl_ingest import render
from verl_ingest.edge import folder as agent_folder
from verl_ingest.edge.trial import free_port
from verl_ingest.settings import Paths, Settings

START_S, STOP_S = 60, 120
MISSING = "no Fluent Bit: set FLUENT_BIT_BIN to its path, or put fluent-bit on the PATH"


def settings_for(runs: Path, state: Path, *, url: str = "http://127.0.0.1:9", **other: Any) -> Settings:
    """Return settings that tail every log below `runs`/RUN/ and its sub-folders, and send to `url`."""
    below = (f"{runs}/{{run}}/", f"{runs}/{{run}}/*/")
    paths = Paths(
        rank=(f"{below[0]}*.jsonl*",),
        file_logger=(),
        console=tuple(f"{folder}*.{ending}*" for folder in below for ending in ("log", "out", "err")),
        rollout=(f"{below[1]}[0-9]*.jsonl",),
        ray=(),
    )
    agent = {"state": str(state), "forward_port": free_port(), "metrics_port": free_port()}
    return Settings.model_construct(
        **{
            **dict(Settings.model_construct()),
            "elasticsearch_url": url,
            "paths": paths,
            "agent": type(Settings.model_construct().agent)(**agent),
            **other,
        }
    )


class Agent:
    """One running Fluent Bit."""

    def __init__(self, binary: str, place: Path, settings: Settings, *, retry_limit: int | None = None) -> None:
        """Start on what these settings render; with a retry limit of its own, which the kit does not render."""
        self.settings, self.log = settings, place / "fluent-bit.log"
        files = agent_folder.files(settings)
        if retry_limit is not None:
            config = files["fluent-bit.yaml"]
            files["fluent-bit.yaml"] = config.replace("retry_limit: no_limits", f"retry_limit: {retry_limit}")
        render.write(place, files)
        Path(settings.agent.state).mkdir(parents=True, exist_ok=True)
        self._output = self.log.open("ab")
        self.process = subprocess.Popen(
            [binary, "-c", str(place / "fluent-bit.yaml")], stdout=self._output, stderr=subprocess.STDOUT, cwd=place
        )
        try:
            wait_for(self._answers, timeout=START_S, what=f"Fluent Bit ({self.log})")
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"Fluent Bit ended with {self.process.returncode}:\n{self.tail()}")
        try:
            return bool(self.metrics())
        except OSError:
            return False

    def metrics(self) -> dict[str, Any]:
        """Return Fluent Bit's own counters."""
        url = f"http://127.0.0.1:{self.settings.agent.metrics_port}/api/v1/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def problems(self) -> list[str]:
        """Return the lines of its log that tell of an error or of something not set."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "[error]" in line or "used but not set" in line]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(STOP_S)
        self._output.close()


@contextmanager
def running(binary: str, place: Path, settings: Settings, **other: Any) -> Iterator[Agent]:
    """Run Fluent Bit while the block lasts; `other` as in `Agent`."""
    agent = Agent(binary, place, settings, **other)
    try:
        yield agent
    finally:
        agent.stop()
