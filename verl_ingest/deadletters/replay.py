"""The records of rejected chunks: which of them the store has; what is missing is written as the agent would have."""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import orjson

from verl_ingest.audit.store import Store
from verl_ingest.deadletters import chunk
from verl_ingest.deadletters.chunk import Record
from verl_ingest.deadletters.letters import Letter, moment
from verl_ingest.edge.fluentbit import PREFIXES
from verl_ingest.errors import InputError
from verl_ingest.load.shipper import Shipper
from verl_ingest.load.threads import Advance
from verl_ingest.normalise.lua import Block, Undated

_EVENT_ID = re.compile(r"[\w-]{20}", re.ASCII)

# Opens a progress bar: what is done, with which files.
Progress = Callable[[str, Sequence[Letter]], AbstractContextManager[Advance]]


def read(
    letters: Sequence[Letter],
    store: Store | None,
    *,
    open_shipper: Callable[[], Shipper] | None = None,
    progress: Progress = lambda what, letters: nullcontext(lambda read: None),
) -> None:
    """Fill in what the files hold and, with a store, how many of their records it has.

    With shippers, one a file, the missing ones are written. A file that is damaged says so and the others go on.
    Raises what the client raises.
    """
    if store:
        store.refresh()
    with progress("sending" if open_shipper else "reading", letters) as advance:
        for letter in letters:
            if not letter.error:
                shipper = open_shipper() if open_shipper else None
                try:
                    _read_file(letter, store, shipper, advance)
                except BaseException:
                    if shipper:
                        shipper.cancel()
                    raise
                if shipper:
                    _settle(letter, shipper)


def _read_file(letter: Letter, store: Store | None, shipper: Shipper | None, advance: Advance) -> None:
    letter.stored = 0 if store else None
    strange = 0
    try:
        for size, records in chunk.read(letter.path):
            own = [record for record in records if _is_own(record.document)]
            strange += len(records) - len(own)
            _count(letter, records)
            if store and own:
                missing = _missing(own, store)
                letter.stored += len(own) - len(missing)
                if shipper:
                    shipper.send(_block(missing, PREFIXES[letter.tag]))
            advance(size)
    except InputError as error:
        letter.error = str(error)
    if strange and not letter.error:
        letter.error = f"{letter.path}: {strange:,} of its records are not the kit's, and are left alone."


def _settle(letter: Letter, shipper: Shipper) -> None:
    shipped = shipper.close()
    letter.created = shipped.created
    letter.stored += shipped.created + shipped.existing  # a record may be there twice
    letter.refused = shipped.refused


def _count(letter: Letter, records: Sequence[Record]) -> None:
    times = [record.time_ns for record in records] + [time for time in (letter.first, letter.last) if time is not None]
    letter.first, letter.last = min(times, default=None), max(times, default=None)
    letter.records += len(records)
    letter.runs.update(str(record.document.get("run_id")) for record in records)


def _is_own(document: dict[str, Any]) -> bool:
    """Tell whether the kit's filter made it: without an id a replay would write it anew each time."""
    event_id, run_id = document.get("event_id"), document.get("run_id")
    return isinstance(event_id, str) and isinstance(run_id, str) and bool(_EVENT_ID.fullmatch(event_id))


def _missing(records: Iterable[Record], store: Store) -> list[Record]:
    by_run: dict[str, list[str]] = {}
    for record in records:
        by_run.setdefault(record.document["run_id"], []).append(record.document["event_id"])
    there = {event_id for run_id, ids in by_run.items() for event_id in store.places(run_id, ids)}
    return [record for record in records if record.document["event_id"] not in there]


def _block(records: Sequence[Record], prefix: str) -> Block:
    """Return records as the agent would write them: the day of the index is that of the record's time in UTC.

    They may all be written there, being in no other day's index.
    """
    actions = []
    for record in records:
        time = moment(record.time_ns)
        document = orjson.dumps({"@timestamp": time, **record.document})
        index = prefix + time[:10].replace("-", ".")
        actions.append(Undated(index, record.document["event_id"], document + b"\n").action())
    return Block(
        lines=len(records),
        documents=len(records),
        flagged=0,
        flags={},
        dropped={},
        dated=b"".join(actions),
        undated=(),
    )
