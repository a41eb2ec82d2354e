"""Which daily indices are old enough to go. Pure: meets no server."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from verl_ingest.index.mappings import RECORDS_PREFIX, SAMPLES_PREFIX

DAY_MS = 86_400_000
_DAILY = re.compile(rf"(?:{RECORDS_PREFIX}|{SAMPLES_PREFIX})(?P<day>[0-9]{{4}}\.[0-9]{{2}}\.[0-9]{{2}})")


@dataclass(frozen=True)
class Index:
    """A daily index: when it was made (milliseconds since 1970), its documents, its bytes on all disks together.

    Documents and bytes are None where the server does not tell, as of an index whose shards are not there.
    """

    name: str
    made: int
    documents: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What is done about an index.

    due: it may go; kept: it is old enough, and stays for the reason `why`; deleted; gone: somebody else has deleted it;
    failed: it could not be looked into or deleted, `why` is a sentence on it.
    """

    index: Index
    word: Literal["due", "kept", "deleted", "gone", "failed"]
    why: str = ""


@dataclass(frozen=True)
class Limits:
    """Days that records and samples are kept; None: for ever."""

    records: int | None
    samples: int | None

    def of(self, index: Index) -> int | None:
        """Return the days that an index is kept."""
        return self.samples if index.name.startswith(SAMPLES_PREFIX) else self.records


def is_daily(name: str) -> bool:
    """Tell whether an index is one of the kit's daily ones, by its name: a prefix and a day that there is."""
    found = _DAILY.fullmatch(name)
    try:
        return found is not None and bool(datetime.strptime(found["day"], "%Y.%m.%d"))
    except ValueError:
        return False


def due(indices: Iterable[Index], limits: Limits, *, now: int) -> list[Index]:
    """Return the daily indices that were made longer ago than they are kept, the oldest first; `now` in milliseconds.

    An index that came back with late lines of an old day counts from when it came back.
    """
    found = [
        index
        for index in indices
        if is_daily(index.name) and (days := limits.of(index)) is not None and now - index.made > days * DAY_MS
    ]
    return sorted(found, key=lambda index: (index.made, index.name))
