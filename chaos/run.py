"""`make chaos`: play every scenario on the real agent and server; write the results into docs/reliability.md."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from chaos import proxy, report, scenarios, server, verdict
from chaos.scene import Scenario, Scene
from chaos.server import Server
from chaos.verdict import Verdict
from tests import fluentbit
from verl_ingest.edge import trial
from verl_ingest.local import distribution


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ", ".join(scenario.name for scenario in scenarios.ALL)
    parser.add_argument("names", nargs="*", help=f"of {names} (default: all, and docs/reliability.md is written)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: %(default)s)")
    given = parser.parse_args()
    unknown = set(given.names) - {scenario.name for scenario in scenarios.ALL}
    if unknown:
        parser.error(f"there is no scenario {', '.join(sorted(unknown))}; there are {names}")
    binary = trial.find(os.environ)
    if binary is None:
        print(f"The chaos suite is skipped: {fluentbit.MISSING}.")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the agent and the server end too
    chosen = [scenario for scenario in scenarios.ALL if not given.names or scenario.name in given.names]
    with server.running(distribution.DEFAULT_VERSION) as elasticsearch, tempfile.TemporaryDirectory() as folder:
        verdicts = list(_play_all(chosen, elasticsearch, binary, Path(folder), given.seed))
        versions = {"Fluent Bit": _version(binary), "Elasticsearch": elasticsearch.version}
    if any(found.failures for found in verdicts):
        sys.exit("The promise is broken: see FAILED above.")
    if not given.names:
        report.write(verdicts, versions)


def _play_all(
    chosen: Sequence[Scenario], elasticsearch: Server, binary: str, folder: Path, seed: int
) -> Iterator[Verdict]:
    for scenario in chosen:
        started = time.monotonic()
        print(f"{scenario.name}: {scenario.what} ...", flush=True)
        found = play(scenario, elasticsearch, binary, folder / scenario.name, seed=seed)
        print(f"  {report.sentence(found)} ({time.monotonic() - started:.0f} s)", flush=True)
        yield found


def play(scenario: Scenario, elasticsearch: Server, binary: str, place: Path, *, seed: int) -> Verdict:
    """Play one scenario in a folder of its own and return what became of its lines."""
    random = Random(f"{seed} {scenario.name}")
    refusals = proxy.Refusals(random, requests=scenario.refused_requests, items=scenario.refused_items)
    with proxy.before(elasticsearch.url, refusals) as url:
        scene = Scene(scenario, place, binary, elasticsearch, url, random, refusals)
        try:
            scenario.play(scene)
            return verdict.of(scene)
        finally:
            scene.close()


def _version(binary: str) -> str:
    shown = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
    return shown.split()[2].removeprefix("v")


if __name__ == "__main__":
    main()
