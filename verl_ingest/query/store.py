"""What a store of documents must answer; Elasticsearch is one (elastic.py).

Documents are dicts as the normaliser makes them (catalog/fields.yml). Times are whole milliseconds since 1970.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

Document = dict[str, Any]
LAST_STEP = 2**53  # the normaliser keeps no larger one
MOST_RANK = 2**31 - 1  # nor is a larger one an integer to the store


class Key(NamedTuple):
    """One metric as the records have it: name, stage of the record, and whether ranks logged it or a driver."""

    name: str
    stage: str | None
    ranked: bool


@dataclass(frozen=True)
class Segment:
    """Steps `first` to `last` as one attempt logged them: from `since` on and before `until`."""

    first: int
    last: int
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True)
class Stream:
    """The metric records of one rank and stage; `dated`: only those whose line has a time of its own."""

    rank: int | None
    stage: str | None
    dated: bool


@dataclass(frozen=True)
class Launch:
    """One process as its records show it; `attempt` is its launch id, where it knows one."""

    attempt: str | None
    host: str | None
    pid: int | None
    first_step: int
    last_step: int
    first: int
    last: int


@dataclass(frozen=True)
class Process:
    """One process of a rank as the records with both show it: `host` where they name it, its first and last record."""

    host: str | None
    pid: int
    rank: int
    first: int
    last: int


@dataclass(frozen=True)
class Level:
    """One metric in one step over all ranks: weighted mean, least and greatest value."""

    mean: float
    low: float
    high: float


Levels = Mapping[int, Level]  # step -> level


class MadeOf(NamedTuple):
    """The metric records of one step and attempt: how many, and the sum of their sequence numbers.

    The server counts those up with every write: other records of the same span of time don't have the same two, nor
    have the same records after one of them was written again.
    """

    records: int
    writes: int


@dataclass(frozen=True)
class StagePresence:
    """What one stage logged in a few steps."""

    ranks: frozenset[int]
    records: Mapping[int, int]  # step -> records
    ends: Mapping[int, int]  # step -> time of its last record, where lines have a time
    host_times: Mapping[int, Mapping[str, float]]  # step -> host -> mean time of its records


@dataclass(frozen=True)
class History:
    """Some steps: each metric's levels, and what each stage logged."""

    levels: Mapping[Key, Levels]
    presence: Mapping[str | None, StagePresence]


@dataclass(frozen=True)
class Lines:
    """Which log lines are wanted; what is None does not matter.

    `around` is a time that adds lines to those of the steps, whatever step they say.
    With a rank it is lines that say it, and of those that say none, the lines of the processes `pids` and tracebacks.
    """

    steps: tuple[int, int] | None = None
    around: tuple[int, int] | None = None
    since: int | None = None
    until: int | None = None
    rank: int | None = None
    pids: frozenset[int] = frozenset()
    levels: Sequence[str] | None = None
    text: str | None = None
    event: str | None = None


@dataclass(frozen=True)
class Mark:
    """The newest record of a sort: its time, whether its line has one of its own, its step."""

    time: int
    dated: bool
    step: int | None


@dataclass(frozen=True)
class RunRow:
    """One run as a list of runs needs it.

    `first` and `last` are of the records whose line has a time of its own, where any has; `read` are the times at
    which an agent read the first and last of those without one.
    """

    run_id: str
    records: int
    first: int
    last: int
    newest_step: Mark | None
    newest_error: Mark | None  # whatever came after it
    read: tuple[int, int] | None = None


@dataclass(frozen=True)
class Moment:
    """One step of one run, as it was logged from `since` on."""

    run_id: str
    step: int
    since: int


@dataclass(frozen=True)
class Share:
    """How many values were looked at, and how many of them fulfil the condition."""

    n: int
    hits: int
    nonfinite: int = 0
    parts: Mapping[str, int] = field(default_factory=dict)  # split of the samples -> n


@dataclass(frozen=True)
class Scores:
    """The scores of samples: how many, how many of them with an empty response, their mean, and counts in equal bins.

    The bins begin at `low` and are `width` wide.
    """

    n: int
    empty: int
    mean: float | None
    low: float
    width: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Condition:
    """`NAME OP NUMBER` over the sample score (no names) or over the metrics `names`, which are one by alias."""

    name: str
    names: tuple[str, ...]
    operator: str
    number: float


# What samples can be sorted by; those without a score come last.
SAMPLE_ORDERS = ("lowest", "highest", "longest")


class RunReader(Protocol):
    """One run as it was when it was opened."""

    run_id: str

    def row(self) -> RunRow:
        """Return the run as the list of runs has it."""

    def pace(self, step: int) -> list[float]:
        """Return how many seconds each of the 50 steps up to `step` took."""

    def steps(self, *, low: int | None = None, high: int | None = None, size: int, newest_first: bool) -> list[int]:
        """Return at most `size` steps that have metrics, samples or an error, from one end of low..high."""

    def records(self, step: int) -> list[Document]:
        """Return all documents of a step but its samples, in order of time, then of file and offset."""

    def samples(self, segment: Segment, size: int, *, order: str = "lowest") -> list[Document]:
        """Return samples in an order: one of `SAMPLE_ORDERS`, or of the `first` or `last` steps."""

    def prompt(self, prompt_id: str) -> list[Document]:
        """Return the samples of one prompt, in order of step, then of time."""

    def sample(self, event_id: str) -> Document | None:
        """Return one sample, None where the run has none of that id."""

    def scores(self, parts: Mapping[str, Sequence[Segment]]) -> dict[str, Scores]:
        """Return the scores of the samples of each part, in the same bins; {} where no part has samples."""

    def launches(self, stream: Stream) -> list[Launch]:
        """Return the processes that logged a stream, in order of their first record."""

    def processes(self, *, pids: Collection[int] | None = None, rank: int | None = None) -> list[Process]:
        """Return the processes that records with a rank name, those with one of the ids or of one rank."""

    def falls(self, stream: Stream, launch: Launch) -> bool:
        """Tell whether the step of a process that logged a stream falls."""

    def track(self, stream: Stream, launch: Launch | None = None) -> list[tuple[int, int]]:
        """Return (time, step) of every record of a stream, or of one process of it, in order of time."""

    def first_after(self, since: int, until: int, step: int, *, dated: bool) -> int | None:
        """Return the time of the first metric record in since..until whose step is at most `step`."""

    def history(self, segments: Sequence[Segment], recent: Sequence[Segment], keys: Sequence[Key]) -> History:
        """Return the metrics' levels in each step of the segments, and what each stage logged in the recent ones."""

    def keys(self, names: Sequence[str]) -> dict[Key, int]:
        """Return how many records have each of the metrics, under all keys it has; none has one with a * in it."""

    def rank_values(self, segments: Sequence[Segment], keys: Sequence[Key]) -> dict[Key, dict[int, dict[int, float]]]:
        """Return metric -> step -> rank -> value."""

    def troubled_steps(self, segments: Sequence[Segment]) -> list[int]:
        """Return the steps with a value that is not finite, an error, or a warning of known trouble, in order."""

    def nonfinite_steps(self, segments: Sequence[Segment]) -> dict[str, list[int]]:
        """Return the steps in which a metric was not finite on some rank, for each such metric."""

    def lines(self, wanted: Lines) -> list[Document]:
        """Return the log, event and unparsed lines and tracebacks that are wanted, in order of time."""

    def setup(self) -> list[Document]:
        """Return the lines that say how the run was set up (see `Store.setups`), in order of time."""

    def last_time(self, condition: Condition | None = None) -> int | None:
        """Return the time of the run's last record; where lines have times, of the last one that has.

        With a condition, of the last one that has a value it speaks of; None where none has.
        """

    def span(self, step: int) -> tuple[int, int] | None:
        """Return the times of the first and last document of a step, of those whose line has one where there are any.

        None where the step has no document.
        """

    def step_at(self, time: int, labels: Mapping[str, Any]) -> int | None:
        """Return the step of the last record up to `time`, else of the first after it; labels narrow the records.

        Records whose line has no time count only where there are no others.
        """

    def step_in(self, since: int, until: int, labels: Mapping[str, Any]) -> int | None:
        """Return the step with the most records from `since` on and before `until`, None where there are none.

        Labels and records whose line has no time count as in `step_at`.
        """


class Store(Protocol):
    """All runs."""

    def run_ids(self, prefix: str = "") -> list[str]:
        """Return the runs whose name starts with the prefix, in order of name."""

    def newest_run(self) -> str | None:
        """Return the run that the newest record belongs to."""

    def runs(self) -> list[RunRow]:
        """Return every run."""

    def open(self, run_id: str) -> AbstractContextManager[RunReader]:
        """Open one run; raises NotFound when it has no records."""

    def values(self, moments: Sequence[Moment], names: Sequence[str]) -> list[dict[str, float]]:
        """Return the weighted mean of each metric that a moment has, for each moment."""

    def paces(self, newest: Mapping[str, int]) -> dict[str, list[float]]:
        """Return how many seconds each of the 50 steps up to the newest one took, for each run; a run may lack some."""

    def golden(
        self, newest: Mapping[str, int], names: Sequence[str], *, window: int, look: int
    ) -> dict[str, Mapping[str, Levels]]:
        """Return the levels of metrics as step summaries have them: run -> metric -> step -> level.

        Of the first `window` steps of each run, and of the last `look` up to its newest one.
        """

    def pinned(self) -> frozenset[str] | None:
        """Return the runs that are pinned, None where the login may not see that."""

    def setups(self, run_ids: Sequence[str]) -> dict[str, list[Document]]:
        """Return the events `config` and `tracker` and the lines with `Total steps` of each run, in order of time.

        Of a config only what context/setup.py reads need be there.
        """

    def share(self, condition: Condition, *, since: int, until: int, run_id: str | None) -> Share:
        """Count the values in the window, and those that fulfil the condition."""
