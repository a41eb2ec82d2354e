"""Work on log files, a few at a time."""

import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings

READERS = min(4, os.cpu_count() or 1)

T = TypeVar("T")
Advance = Callable[[int], object]


def work_through(
    items: Iterable[T], work: Callable[[T, Normaliser, Advance], None], settings: Settings, progress: Advance
) -> None:
    """Do the work on each item, each thread with a normaliser of its own; raise the first failure of any.

    The work tells the third argument how many bytes it read, and often: this raises where another one failed.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    failures: list[BaseException] = []

    def advance(read: int) -> None:
        if failures:
            raise failures[0]
        progress(read)

    def run() -> None:
        try:
            normaliser = Normaliser(settings)
            while not failures:
                work(waiting.get_nowait(), normaliser, advance)
        except queue.Empty:
            return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, name="reader") for _ in range(min(READERS, waiting.qsize()))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C comes to this thread only
        failures.append(error)
    if failures:
        raise failures[0]
