"""A load: files -> blocks of lines -> documents -> `_bulk`, with every line accounted for."""

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elasticsearch import Elasticsearch

from verl_ingest.errors import InputError
from verl_ingest.load import duration
from verl_ingest.load.files import LogFile
from verl_ingest.load.reader import Unfinished, read
from verl_ingest.load.shipper import Shipper
from verl_ingest.normalise.lua import Block, Fallback, Normaliser
from verl_ingest.settings import Settings

READERS = min(4, os.cpu_count() or 1)


@dataclass
class Summary:
    """What a load did. lines = documents + dropped; documents = created + existing + refused."""

    files: int = 0
    lines: int = 0
    documents: int = 0
    created: int = 0
    existing: int = 0
    flagged: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    flags: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every line of every file is a document or was dropped by a rule."""
        return not self.refused and not self.unreadable

    def add(self, block: Block) -> None:
        """Count a block."""
        self.lines += block.lines
        self.documents += block.documents
        self.flagged += block.flagged
        self.flags.update(block.flags)
        self.dropped.update(block.dropped)


def load(
    logs: Sequence[LogFile],
    client: Elasticsearch,
    settings: Settings,
    *,
    final: bool = False,
    progress: Callable[[int], None] = lambda read: None,
) -> Summary:
    """Write every line of the files into the daily indices; `progress` is told the bytes read.

    A file that can't be read is named in the summary and the others go on. Loading again changes nothing but what is
    new. Raises what the client raises where the server stays away or refuses a whole request.
    """
    started = time.monotonic()
    summary, lock = Summary(), threading.Lock()
    shipper = Shipper(client)
    # Largest first: the last file to end is then a small one.
    waiting: queue.SimpleQueue[LogFile] = queue.SimpleQueue()
    for log in sorted(logs, key=lambda log: -log.size):
        waiting.put(log)
    failures: list[BaseException] = []

    def work() -> None:
        normaliser = Normaliser(settings)
        while not failures:
            try:
                log = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                _load_file(log, normaliser, shipper, summary, lock, final=final, progress=progress)
            except InputError as error:
                with lock:
                    summary.unreadable.append(str(error))
            except BaseException as error:
                failures.append(error)

    readers = [threading.Thread(target=work, name="reader") for _ in range(min(READERS, len(logs)))]
    try:
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    except BaseException as error:
        failures.append(error)
    if failures:
        shipper.cancel()
        raise failures[0]
    shipped = shipper.close()
    summary.created, summary.existing, summary.refused = shipped.created, shipped.existing, shipped.refused
    summary.seconds = time.monotonic() - started
    return summary


def _load_file(
    log: LogFile,
    normaliser: Normaliser,
    shipper: Shipper,
    summary: Summary,
    lock: threading.Lock,
    *,
    final: bool,
    progress: Callable[[int], None],
) -> None:
    file = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
    began = log.modified_ns - int(duration.of_steps(log.path) * 1e9)
    fallback = Fallback(max(began, 0), "estimated")
    for part in read(log, final=final):
        if isinstance(part, Unfinished):
            with lock:
                summary.unfinished += 1
        else:
            block = normaliser.block(file, part.data, offset=part.offset, fallback=fallback)
            shipper.send(block)
            with lock:
                summary.add(block)
        progress(part.read)
    with lock:
        summary.files += 1
