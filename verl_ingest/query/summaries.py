"""Step summaries: one document a run, attempt and step, made of the step's metric records (index `verl_steps`).

They are a memory of what the records say, never a truth of their own. Each names the records it was made of: how many
they are, the sum of their sequence numbers, which the server counts up with every write, and the times of the first
and the last. A reader counts the records of the steps it asks for, in one aggregation over the snapshot it reads, and
uses a summary only where it is of the times asked for and count and sum agree. So it makes no difference whether
records came late, were written again with another content or deleted, whether an attempt came to light that cuts the
steps elsewhere, or whether a summary is missing or of another attempt: of exactly those steps the records are read
instead. The count takes about a fifth of the time that it saves, whatever the number of ranks: the means need every
metric of every record, the count none.

Both ways say the same: every record of the step and attempt counts, also a second value of one rank, since an
aggregation can't tell which is the last (the step itself, which is read whole, shows the last).
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, NamedTuple

from verl_ingest.query.bodies import Body, in_segments, of_run
from verl_ingest.query.history import level
from verl_ingest.query.store import Document, History, Key, Level, MadeOf, Segment, StagePresence
from verl_ingest.query.times import iso

VERSION = 2  # of what a summary says; those of another version are not used
MOST = 10_000  # summaries of one search; of steps beyond them the records are read


class Spread(NamedTuple):
    """One metric over the ranks of a step; mean and (the population's) std are weighted as `pooling.pool` does."""

    mean: float
    std: float
    low: float
    high: float
    n: int
    worst_rank: int | None


class StageSummary(NamedTuple):
    """What one stage logged in a step: its ranks as rows from first to last, the rest as `StagePresence` has it."""

    ranks: Sequence[Sequence[int]]
    records: int
    end: int | None
    host_times: Mapping[str, float]


@dataclass(frozen=True)
class Summary:
    """One step as one attempt logged it."""

    run_id: str
    attempt: int
    step: int
    made_of: MadeOf
    first: int
    last: int
    metrics: Mapping[Key, Spread]
    stages: Mapping[str | None, StageSummary]

    @property
    def document_id(self) -> str:
        """The id of its document: whoever makes the summary again replaces it."""
        text = json.dumps([self.run_id, self.attempt, self.step])
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:15]).decode()

    def document(self) -> Document:
        """Return the document; of a metric that several stages logged, `metrics` has that of most ranks."""
        by_weight = sorted(self.metrics.items(), key=lambda item: (item[0].ranked, item[1].n, item[0].stage or ""))
        return {
            "@timestamp": iso(self.last),
            "run_id": self.run_id,
            "step": self.step,
            "step_key": f"{self.run_id}|{self.step}",
            "attempt_number": self.attempt,
            "records": self.made_of.records,
            "metrics": {key.name: spread.mean for key, spread in by_weight},
            "summary": {
                "version": VERSION,
                "writes": self.made_of.writes,
                "first": self.first,
                "last": self.last,
                "metrics": [[*key, *spread] for key, spread in self.metrics.items()],
                "stages": [[stage, *logged] for stage, logged in self.stages.items()],
            },
        }


def read(document: Document) -> Summary | None:
    """Return the summary that a document has, None where it is of another version."""
    found = document["summary"]
    if found["version"] != VERSION:
        return None
    return Summary(
        run_id=document["run_id"],
        attempt=document["attempt_number"],
        step=document["step"],
        made_of=MadeOf(document["records"], found["writes"]),
        first=found["first"],
        last=found["last"],
        metrics={Key(name, stage, ranked): Spread(*row) for name, stage, ranked, *row in found["metrics"]},
        stages={stage: StageSummary(*row) for stage, *row in found["stages"]},
    )


def stored(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that finds the summaries of some steps, of all attempts."""
    steps = in_segments([Segment(segment.first, segment.last) for segment in segments])
    return {"size": MOST, "track_total_hits": False, "query": {"bool": {"filter": [of_run(run_id), steps]}}}


def levels(run_id: str, step: int, names: Sequence[str], *, window: int, look: int) -> Body:
    """Return the body that finds metrics of the first `window` steps of a run, and of the last `look` up to `step`."""
    steps = [{"range": {"step": {"lte": window}}}, {"range": {"step": {"gt": step - look}}}]
    wanted = [of_run(run_id), {"range": {"step": {"lte": step}}}, {"bool": {"should": steps}}]
    return {
        "size": MOST,
        "track_total_hits": False,
        "query": {"bool": {"filter": wanted}},
        "sort": ["step", {"attempt_number": {"order": "asc", "unmapped_type": "integer"}}],
        "stored_fields": "_none_",
        "docvalue_fields": ["step", *(f"metrics.{name}" for name in names)],
    }


def read_levels(hits: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Level]]:
    """Return metric -> step -> mean from what `levels` answers, of the newest attempt that has the step."""
    found: dict[str, dict[int, Level]] = {}
    for hit in hits:
        [step] = hit["fields"].pop("step")
        for field, [mean] in hit["fields"].items():
            found.setdefault(field.removeprefix("metrics."), {})[step] = level(mean, mean, mean)
    return found


def is_fresh(summary: Summary, segment: Segment, made_of: Mapping[int, MadeOf]) -> bool:
    """Tell whether a summary says what the records of its step say in a segment, which has records as `made_of`."""
    return (
        segment.first <= summary.step <= segment.last
        and (segment.since is None or segment.since <= summary.first)
        and (segment.until is None or summary.last < segment.until)
        and made_of.get(summary.step) == summary.made_of
    )


def others(segments: Sequence[Segment], present: Iterable[int], fresh: Collection[int]) -> list[Segment]:
    """Return the segments narrowed to those of the present steps that have no fresh summary."""
    found = []
    for segment in segments:
        steps = (step for step in sorted(present) if segment.first <= step <= segment.last)
        for is_fresh, part in groupby(steps, key=lambda step: step in fresh):
            if not is_fresh:
                first, *rest = part
                found.append(replace(segment, first=first, last=rest[-1] if rest else first))
    return found


def history(
    fresh: Mapping[int, Summary], segments: Sequence[Segment], recent: Sequence[Segment], of_records: History
) -> History:
    """Return the history of what summaries say of the segments' steps, and records of the others."""
    levels = {key: dict(of_key) for key, of_key in of_records.levels.items()}
    for summary in _within(segments, fresh):
        for key, spread in summary.metrics.items():
            if key in levels:
                levels[key][summary.step] = level(spread.mean, spread.low, spread.high)
    presences = [_presence(summary) for summary in _within(recent, fresh)]
    in_order = {key: dict(sorted(of_key.items())) for key, of_key in levels.items()}
    return History(in_order, _joined([*presences, of_records.presence]))


def _within(segments: Sequence[Segment], fresh: Mapping[int, Summary]) -> list[Summary]:
    return [
        summary for step, summary in fresh.items() if any(segment.first <= step <= segment.last for segment in segments)
    ]


def _joined(parts: Iterable[Mapping[str | None, StagePresence]]) -> dict[str | None, StagePresence]:
    found: dict[str | None, list[StagePresence]] = {}
    for part in parts:
        for stage, presence in part.items():
            found.setdefault(stage, []).append(presence)
    return {
        stage: StagePresence(
            ranks=frozenset().union(*(one.ranks for one in presences)),
            records={step: count for one in presences for step, count in one.records.items()},
            ends={step: end for one in presences for step, end in one.ends.items()},
            host_times={step: times for one in presences for step, times in one.host_times.items()},
        )
        for stage, presences in found.items()
    }


def _presence(summary: Summary) -> dict[str | None, StagePresence]:
    return {
        stage: StagePresence(
            ranks=frozenset(chain.from_iterable(range(first, last + 1) for first, last in logged.ranks)),
            records={summary.step: logged.records},
            ends={} if logged.end is None else {summary.step: logged.end},
            host_times={summary.step: logged.host_times},
        )
        for stage, logged in summary.stages.items()
    }
