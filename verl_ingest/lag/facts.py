"""What is known of an agent's lag; collected by the other modules, judged by verdict.py."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

UNTAKEN_S = 10  # tries are at most 5 s apart (scheduler.cap), so that one that failed by chance is made up for


@dataclass(frozen=True)
class Tailed:
    """A log file: its size, the offset that the agent has read to (None: it does not know the file), bytes unread.

    An unfinished last line is not counted as unread. idle_s: seconds since something was last written.
    """

    path: str
    family: str
    size: int
    offset: int | None
    unread: int
    idle_s: float


@dataclass(frozen=True)
class Waiting:
    """What one input has read and no output has delivered: chunks on disk, their bytes, the age of the oldest."""

    input: str
    output: str
    chunks: int
    bytes: int
    oldest_s: float


@dataclass(frozen=True)
class Agent:
    """Fluent Bit's own counters since its start, of all outputs and inputs; `paused`: inputs that do not read now.

    `chunks`: those that are read and not delivered, now. `untaken_s`: how many seconds ago an output last delivered
    something whose newest try was not taken, 0 where each was.
    """

    version: str
    uptime_s: float
    delivered: int
    dropped: int
    retries: int
    errors: int
    truncated: int
    chunks: int
    paused: tuple[str, ...]
    untaken_s: float = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether something waits, and was sent again, since nothing was accepted: ever, or in the last few tries."""
        nothing = self.delivered == 0 or self.untaken_s > UNTAKEN_S
        return self.chunks > 0 and self.retries > 0 and nothing


@dataclass(frozen=True)
class Newest:
    """The newest record that Elasticsearch has of a run on a host ('' where records name none)."""

    run_id: str
    host: str
    age_s: float


@dataclass(frozen=True)
class Facts:
    """All of it. `buffer_limit`: bytes that may wait for each output; `troubles`: why something is not known.

    `newest` is None where Elasticsearch does not answer.
    """

    buffer_limit: int
    files: Sequence[Tailed]
    waiting: Sequence[Waiting]
    agent: Agent | None
    newest: Sequence[Newest] | None
    troubles: Sequence[str]

    @property
    def unread(self) -> list[Tailed]:
        """The files that are not read to their end, the largest rest first."""
        return sorted((file for file in self.files if file.unread), key=lambda file: -file.unread)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers with their sums."""
        return {
            "unread_bytes": sum(file.unread for file in self.files),
            "waiting_bytes": sum(each.bytes for each in self.waiting),
            **asdict(self),
        }
