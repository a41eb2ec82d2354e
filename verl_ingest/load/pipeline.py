"""A load: files -> blocks of lines -> documents -> `_bulk`, with every line accounted for."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from elasticsearch import Elasticsearch

from verl_ingest.errors import InputError
from verl_ingest.load import duration
from verl_ingest.load.files import LogFile
from verl_ingest.load.patience import Notice
from verl_ingest.load.reader import Unfinished, read
from verl_ingest.load.shipper import Shipper
from verl_ingest.load.threads import Advance, work_through
from verl_ingest.normalise.lua import Block, Normaliser
from verl_ingest.settings import Settings


@dataclass
class Summary:
    """What a load did. lines = documents + dropped; documents = created + existing + refused.

    `summarised` steps have a new summary of all that the store has of them; `not_summarised` says why others have none.
    """

    files: int = 0
    lines: int = 0
    documents: int = 0
    created: int = 0
    existing: int = 0
    flagged: int = 0
    unfinished: int = 0
    seconds: float = 0.0
    summarised: int = 0
    not_summarised: str = ""
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
    progress: Advance = lambda read: None,
    notice: Notice = lambda sentence: None,
) -> Summary:
    """Write every line of the files into the daily indices; `progress` is told the bytes read, `notice` of outages.

    A file that can't be read is named in the summary and the others go on. Loading again changes nothing but what is
    new. Raises what the client raises where the server stays away or refuses a whole request.
    """
    started = time.monotonic()
    summary, lock = Summary(), threading.Lock()
    shipper = Shipper(client, notice=notice)

    def work(log: LogFile, normaliser: Normaliser, advance: Advance) -> None:
        try:
            _load_file(log, normaliser, shipper, summary, lock, final=final, progress=advance)
        except InputError as error:
            with lock:
                summary.unreadable.append(str(error))

    try:
        # Largest first: the last file to end is then a small one.
        work_through(sorted(logs, key=lambda log: -log.size), work, settings, progress)
    except BaseException:
        shipper.cancel()
        raise
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
    progress: Advance,
) -> None:
    file = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
    fallback = duration.began(log)
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
