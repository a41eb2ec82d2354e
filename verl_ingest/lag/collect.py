"""All that is known of the agent's lag on this node; what can't be found out is said, and the rest found out."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from verl_ingest.edge import fluentbit
from verl_ingest.errors import KitError
from verl_ingest.index import client
from verl_ingest.lag import metrics, newest, offsets, waiting
from verl_ingest.lag.facts import Facts, Newest, Tailed
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings

TIMEOUT_S = 10  # whoever asks how things are does not wait for a server that hangs

T = TypeVar("T")


def collect(settings: Settings) -> Facts:
    """Ask the agent's folder, the agent and Elasticsearch; nothing is raised for one that does not answer."""
    now = time.time()
    troubles: list[str] = []

    def ask(read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except KitError as error:
            troubles.append(str(error))
            return otherwise

    files: Sequence[Tailed] = ask(lambda: offsets.read(settings, now=now), [])
    facts = Facts(
        buffer_limit=fluentbit.buffer_bytes(settings),
        files=files,
        waiting=ask(lambda: waiting.read(settings, now=now), []),
        agent=ask(lambda: metrics.read(settings), None),
        newest=ask(lambda: _newest(settings, _runs(files, settings), now), None),
        troubles=troubles,
    )
    troubles[:] = dict.fromkeys(troubles)  # the folder may be missed twice
    return facts


def _newest(settings: Settings, run_ids: Sequence[str], now: float) -> list[Newest]:
    with client.explained(settings, timeout_s=TIMEOUT_S), client.connect(settings, timeout_s=TIMEOUT_S) as server:
        return newest.read(server, run_ids, now=now)


def _runs(files: Sequence[Tailed], settings: Settings) -> list[str]:
    """Return the runs of the files, those that were last written to."""
    normaliser = Normaliser(settings)
    runs: dict[str, None] = {}
    for file in sorted(files, key=lambda file: file.idle_s):
        located = normaliser.locate(Path(file.path))
        if run := located[0] if located else settings.run:
            runs[run] = None
        if len(runs) == newest.RUNS:
            break
    return list(runs)
