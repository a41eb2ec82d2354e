"""Step summaries: one document a run, attempt and step, made of the step's metric records (index `verl_steps`).

They are a memory of what the records say, never a truth of their own. Each names the records it was made of: how many
they are, the time of the last one, and the sum of their sequence numbers, which the server raises with every write. A
reader counts the same of the steps it asks for, in one aggregation over the snapshot it reads, and uses a summary only
where all three agree. So it makes no difference whether records came late, were written again with another content or
deleted, whether an attempt came to light that cuts the steps elsewhere, or whether the summary is missing, of another
attempt, or older than the index it speaks of: of exactly those steps the records are read instead. The count costs
about a tenth of what it saves: a mean over ranks needs every metric of every record, the count none.

Both ways say the same: every record of the step and attempt counts, also a second value of one rank, since an
aggregation can't tell which is the last (the step itself, which is read whole, shows the last).
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from verl_ingest.query.bodies import Body, in_segments, of_run
from verl_ingest.query.history import level
from verl_ingest.query.store import Document, History, Key, MadeOf, Segment, StagePresence
from verl_ingest.query.times import iso

VERSION = 1  # of what a summary says; those of another version are not used
MOST = 10_000  # summaries of one search; of steps beyond them the records are read


@dataclass(frozen=True)
class Spread:
    """One metric over the ranks of a step; mean and (the population's) std are weighted as `pooling.pool` does."""

    mean: float
    std: float
    low: float
    high: float
    n: int
    worst_rank: int | None


@dataclass(frozen=True)
class Summary:
    """One step as one attempt logged it."""

    run_id: str
    attempt: int
    step: int
    made_of: MadeOf
    metrics: Mapping[Key, Spread]
    stages: Mapping[str | None, StagePresence]

    @property
    def document_id(self) -> str:
        """The id of its document: whoever makes the summary again replaces it."""
        text = json.dumps([self.run_id, self.attempt, self.step])
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:15]).decode()

    def document(self) -> Document:
        """Return the document; of a metric that several stages logged, `metrics` has that of most ranks."""
        by_weight = sorted(self.metrics.items(), key=lambda item: (item[0].ranked, item[1].n, item[0].stage or ""))
        return {
            "@timestamp": iso(self.made_of.last),
            "run_id": self.run_id,
            "step": self.step,
            "step_key": f"{self.run_id}|{self.step}",
            "attempt_number": self.attempt,
            "records": self.made_of.records,
            "metrics": {key.name: spread.mean for key, spread in by_weight},
            "summary": {
                "version": VERSION,
                "last": self.made_of.last,
                "writes": self.made_of.writes,
                "metrics": [_metric_entry(key, spread) for key, spread in self.metrics.items()],
                "stages": [_stage_entry(stage, here, self.step) for stage, here in self.stages.items()],
            },
        }


def read(document: Document) -> Summary | None:
    """Return the summary that a document has, None where it is of another version."""
    found, step = document["summary"], document["step"]
    if found["version"] != VERSION:
        return None
    return Summary(
        run_id=document["run_id"],
        attempt=document["attempt_number"],
        step=step,
        made_of=MadeOf(document["records"], found["last"], found["writes"]),
        metrics={
            Key(entry["name"], entry["stage"], entry["ranked"]): Spread(
                entry["mean"], entry["std"], entry["min"], entry["max"], entry["n"], entry["worst_rank"]
            )
            for entry in found["metrics"]
        },
        stages={entry["stage"]: _read_stage(entry, step) for entry in found["stages"]},
    )


def stored(run_id: str, segments: Sequence[Segment]) -> Body:
    """Return the body that finds the summaries of some steps, of all attempts."""
    steps = in_segments([Segment(segment.first, segment.last) for segment in segments])
    return {"size": MOST, "track_total_hits": False, "query": {"bool": {"filter": [of_run(run_id), steps]}}}


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
    levels = {}
    for key, levels_of_records in of_records.levels.items():
        spreads = {step: summary.metrics[key] for step, summary in fresh.items() if key in summary.metrics}
        levels_of_summaries = {
            step: level(spread.mean, spread.low, spread.high)
            for step, spread in spreads.items()
            if _is_in(step, segments)
        }
        levels[key] = dict(sorted({**levels_of_records, **levels_of_summaries}.items()))
    presences = [summary.stages for step, summary in fresh.items() if _is_in(step, recent)]
    return History(levels, _joined([*presences, of_records.presence]))


def _is_in(step: int, segments: Sequence[Segment]) -> bool:
    return any(segment.first <= step <= segment.last for segment in segments)


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


def _metric_entry(key: Key, spread: Spread) -> dict[str, Any]:
    return {
        "name": key.name,
        "stage": key.stage,
        "ranked": key.ranked,
        "mean": spread.mean,
        "std": spread.std,
        "min": spread.low,
        "max": spread.high,
        "n": spread.n,
        "worst_rank": spread.worst_rank,
    }


def _stage_entry(stage: str | None, presence: StagePresence, step: int) -> dict[str, Any]:
    return {
        "stage": stage,
        "ranks": _ranges(presence.ranks),
        "records": presence.records[step],
        "end": presence.ends.get(step),
        "hosts": presence.host_times[step],
    }


def _read_stage(entry: Mapping[str, Any], step: int) -> StagePresence:
    return StagePresence(
        ranks=frozenset(rank for first, last in entry["ranks"] for rank in range(first, last + 1)),
        records={step: entry["records"]},
        ends={} if entry["end"] is None else {step: entry["end"]},
        host_times={step: entry["hosts"]},
    )


def _ranges(ranks: Iterable[int]) -> list[list[int]]:
    """Return the first and last rank of each unbroken row: hundreds of ranks are mostly one row."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found
