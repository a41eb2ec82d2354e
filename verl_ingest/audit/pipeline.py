"""An audit: files -> blocks of lines -> the ids of their documents -> where these stand in the store."""

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

from verl_ingest.audit import entries
from verl_ingest.audit.balance import NAMED_LINES, Balance, Report
from verl_ingest.audit.entries import Entry
from verl_ingest.audit.store import PAGE, Store
from verl_ingest.errors import InputError
from verl_ingest.load import duration
from verl_ingest.load.files import LogFile
from verl_ingest.load.reader import Lines, Unfinished, read
from verl_ingest.load.shipper import Shipper
from verl_ingest.load.threads import Advance, work_through
from verl_ingest.normalise.lua import Block, Fallback, Normaliser
from verl_ingest.settings import Settings

_FEW = 100  # ids that are listed rather than counted in halves: to read an id costs as much as to count a hundred

# Opens a progress bar: what is done, with which files.
Progress = Callable[[str, Sequence[LogFile]], AbstractContextManager[Advance]]
Set = Sequence[LogFile]  # files whose lines may have the same ids: a log and what was rotated away from it


def audit(
    logs: Sequence[LogFile],
    store: Store,
    settings: Settings,
    *,
    full: bool = False,
    shipper: Shipper | None = None,
    progress: Progress = lambda what, logs: nullcontext(lambda read: None),
) -> Report:
    """Return what became of every line of the files; `full` asks for each document instead of counting them.

    With a shipper, missing documents are shipped through it and those that stand in two days' indices are removed
    from the later one; then the files concerned are audited again, and the report has the new numbers. Raises what the
    client raises.
    """
    started, refused = time.monotonic(), Counter[str]()
    sets = _sets(logs, Normaliser(settings))
    try:
        balances = _Pass(store, full, shipper).run(sets, settings, progress, "auditing")
    except BaseException:
        if shipper:
            shipper.cancel()
        raise
    if shipper:
        refused = shipper.close().refused
        mended = [files for files in sets if any(balances[log].repaired for log in files)]
        for log, balance in _Pass(store, full, None).run(mended, settings, progress, "auditing again").items():
            balance.repaired = balances[log].repaired
            balances[log] = balance
    return Report([balances[log] for log in logs], refused, time.monotonic() - started)


def _sets(logs: Sequence[LogFile], normaliser: Normaliser) -> list[Set]:
    """Group files by what goes into the ids of their lines; the largest set first, so that the last to end is small."""
    sets: dict[tuple[str, str], list[LogFile]] = {}
    for log in logs:
        opened = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
        sets.setdefault((log.run_id, normaliser.path_of(opened)), []).append(log)
    return sorted(sets.values(), key=lambda files: -sum(log.size for log in files))


@dataclass(frozen=True)
class _Opened:
    """A file that is being read: the normaliser's handle, the time of its undated lines, the balance so far."""

    handle: Any
    fallback: Fallback
    balance: Balance


@dataclass(frozen=True)
class _Pass:
    """One pass over files."""

    store: Store
    full: bool
    shipper: Shipper | None

    def run(self, sets: Sequence[Set], settings: Settings, progress: Progress, what: str) -> dict[LogFile, Balance]:
        balances = {log: Balance(log) for files in sets for log in files}

        def work(files: Set, normaliser: Normaliser, advance: Advance) -> None:
            self._audit_set([balances[log] for log in files], normaliser, advance)

        self.store.refresh()
        with progress(what, list(balances)) as advance:
            work_through(sets, work, settings, advance)
        return balances

    def _audit_set(self, balances: Sequence[Balance], normaliser: Normaliser, advance: Advance) -> None:
        """Read the files of a set side by side, in order of offset: equal ids then come close to each other."""
        parts = heapq.merge(*(_parts(balance, normaliser) for balance in balances), key=lambda part: part[1].offset)
        recent = _Recent()
        for file, part in parts:
            if isinstance(part, Unfinished):
                file.balance.lines += 1
                file.balance.unfinished += 1
            else:
                block = normaliser.block(file.handle, part.data, offset=part.offset, fallback=file.fallback)
                found = entries.of_block(block)
                repeated = recent.add(part, found) if len(balances) > 1 else frozenset()
                self._audit_block(file.balance, part, block, found, repeated)
            advance(part.read)

    def _audit_block(
        self, balance: Balance, part: Lines, block: Block, found: list[Entry], repeated: frozenset[str]
    ) -> None:
        own = [entry for entry in found if entry.event_id not in repeated]
        places = self._places(own)
        missing = sorted((entry for entry in own if places.get(entry.event_id) == []), key=lambda entry: entry.offset)
        several = [entry for entry in own if len(places.get(entry.event_id, ())) > 1]
        balance.lines += block.lines
        balance.dropped.update(block.dropped)
        balance.indexed += len(own) - len(missing)
        balance.same_id += len(repeated)
        balance.in_two_days += len(several)
        balance.flagged.update(block.flags)
        others = chain(missing, (entry for entry in found if entry.event_id in repeated))
        balance.flagged -= Counter(reason for entry in others for reason in entry.reasons)
        balance.missing_offsets.extend(entry.offset for entry in missing)
        for entry in missing[: NAMED_LINES - len(balance.first_missing)]:
            balance.first_missing.append((entry.offset, _text(part, entry.offset)))
        if self.shipper and (missing or several):
            self.shipper.send(entries.to_block(missing, block))
            self.store.remove([(day, entry.event_id) for entry in several for day in _surplus(entry, places)])
            balance.repaired += len(missing) + len(several)

    def _places(self, found: list[Entry]) -> dict[str, list[str]]:
        """Return the places of documents, but for those that stand in one place each."""
        # Undated documents may all stand in another index than is guessed, but then they do so together.
        groups: dict[tuple[str, bool], list[str]] = {}
        for entry in found:
            groups.setdefault((entry.index, entry.dated), []).append(entry.event_id)
        places: dict[str, list[str]] = {}
        for ids in groups.values():
            for start in range(0, len(ids), PAGE):
                places |= self._unsettled(found[0].run_id, ids[start : start + PAGE])
        return places

    def _unsettled(self, run_id: str, ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the places of ids, but for those that counting shows to stand in one place each."""
        if not self.full:
            counts = self.store.counts(run_id, ids)
            if list(counts.values()) == [len(ids)]:
                return {}
            if not counts:
                return {event_id: [] for event_id in ids}
            if len(ids) > _FEW:
                middle = len(ids) // 2
                return self._unsettled(run_id, ids[:middle]) | self._unsettled(run_id, ids[middle:])
        answer = self.store.places(run_id, ids)
        return {event_id: list(answer.get(event_id, ())) for event_id in ids}


class _Recent:
    """The ids of blocks that reach as far as where a set's files are being read."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._blocks: deque[tuple[int, list[str]]] = deque()

    def add(self, part: Lines, found: list[Entry]) -> frozenset[str]:
        """Add a block, none of which begins before the one added last; return its ids that were there already."""
        while self._blocks and self._blocks[0][0] <= part.offset:
            self._ids.difference_update(self._blocks.popleft()[1])
        ids = [entry.event_id for entry in found]
        repeated = self._ids.intersection(ids)
        self._ids.update(ids)
        self._blocks.append((part.offset + part.read, ids))
        return frozenset(repeated)


def _parts(balance: Balance, normaliser: Normaliser) -> Iterator[tuple[_Opened, Lines | Unfinished]]:
    """Yield the parts of a file; what keeps it from being read is noted in the balance."""
    log = balance.log
    handle = normaliser.open(log.path, run_id=log.run_id, relative=log.relative)
    opened = _Opened(handle, duration.began(log), balance)
    try:
        for part in read(log, final=False):
            yield opened, part
    except InputError as error:
        balance.error = str(error)


def _surplus(entry: Entry, places: dict[str, list[str]]) -> list[str]:
    """Return the indices that a document is too many in: all but that of its own day, or else the first."""
    days = places[entry.event_id]
    kept = entry.index if entry.dated and entry.index in days else min(days)
    return [day for day in days if day != kept]


def _text(part: Lines, offset: int) -> str:
    """Return the beginning of a line."""
    start = offset - part.offset
    return part.data[start : start + 400].partition(b"\n")[0].decode(errors="replace")
