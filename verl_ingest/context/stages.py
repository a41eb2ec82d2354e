"""Stages of a step: how long each took, which ranks and records it lacks."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.context.metrics import SECONDS_PER, Judged
from verl_ingest.query.store import Document, Key, Levels, StagePresence
from verl_ingest.query.times import milliseconds

RECENT = 10
FLOW = ("rollout", "reward", "critic", "actor", "trainer", "system")
# What measures a stage, best first (names of metrics.yml). A forward latency is but a part of its stage, so the entry
# says which metric it is. Where nothing measures it, the duration is unknown: a stage's records tell when it ended on
# each rank, not when it began.
MEASURES = {
    "rollout": ("gen_time", "rollout_latency", "rollout_duration"),
    "reward": ("reward_time",),
    "critic": ("update_critic_time", "critic_forward_latency"),
    "actor": ("update_actor_time", "actor_forward_latency"),
    "trainer": ("step_time",),
}


@dataclass(frozen=True)
class StageTime:
    """How long a stage took on its slowest rank, in seconds, and the median of the steps before."""

    stage: str
    duration: float | None
    median: float | None
    metric: str | None

    def entry(self) -> dict[str, Any]:
        """Return the stage as `step --json` has it."""
        return {"stage": self.stage, "duration_s": self.duration, "median_s": self.median, "metric": self.metric}


def times(
    judged: Sequence[Judged],
    levels: Mapping[Key, Levels],
    documents: Sequence[Document],
    presence: Mapping[str | None, StagePresence],
    step: int,
    *,
    begins: bool,
) -> list[StageTime]:
    """Return the stages of a step in the order of the flow; the trainer's is the whole step.

    `begins` says that the step is the first of its attempt, so that the time since the step before means nothing.
    """
    present = {metric.stage for metric in judged} | {"trainer"}
    found = {stage: _measured(stage, judged, levels) for stage in present if stage is not None}
    if found["trainer"].duration is None and not begins:
        found["trainer"] = _between_ends(documents, presence, step)
    return sorted(found.values(), key=lambda time: (FLOW.index(time.stage) if time.stage in FLOW else 99, time.stage))


def missing_ranks(documents: Iterable[Document], presence: Mapping[str | None, StagePresence]) -> dict[str, list[int]]:
    """Return stage -> ranks seen in the steps before and absent now.

    A stage that is absent as a whole lacks its ranks only if every step before had it: some log every few steps.
    """
    now: dict[str | None, set[int]] = {}
    for document in documents:
        if document["kind"] == "metric":
            now.setdefault(document.get("stage"), set()).update({document["rank"]} if "rank" in document else ())
    steps = max((len(before.records) for before in presence.values()), default=0)
    return {
        stage: sorted(before.ranks - now.get(stage, set()))
        for stage, before in sorted(presence.items(), key=lambda item: item[0] or "")
        if stage is not None and before.ranks - now.get(stage, set()) and (stage in now or len(before.records) == steps)
    }


def expected_records(presence: Mapping[str | None, StagePresence]) -> int | None:
    """Return the median number of metric records of the steps before, None where there are none."""
    counts: dict[int, int] = {}
    for stage in presence.values():
        for step, records in stage.records.items():
            counts[step] = counts.get(step, 0) + records
    return round(statistics.median(counts.values())) if counts else None


def _measured(stage: str, judged: Sequence[Judged], levels: Mapping[Key, Levels]) -> StageTime:
    for measure in MEASURES.get(stage, ()):
        for metric in judged:
            if metric.quantity == measure:
                scale = SECONDS_PER[metric.unit]
                before = [level.high * scale for level in levels.get(metric.key, {}).values()]
                median = statistics.median(before) if before else None
                return StageTime(stage, metric.pooled.high * scale, median, metric.key.name)
    return StageTime(stage, None, None, None)


def step_times(presence: Mapping[str | None, StagePresence]) -> dict[int, float]:
    """Return how many seconds passed from the last record of the step before to the last record of each step."""
    ends: dict[int, int] = {}
    for stage in presence.values():
        for step, end in stage.ends.items():
            ends[step] = max(end, ends.get(step, 0))
    return {step: (end - ends[step - 1]) / 1_000 for step, end in ends.items() if step - 1 in ends}


def _between_ends(documents: Sequence[Document], presence: Mapping[str | None, StagePresence], step: int) -> StageTime:
    """Measure the step from the last record of the step before to its own last record."""
    end = max((milliseconds(document) for document in documents if document["kind"] == "metric"), default=None)
    ends = [stage.ends[step - 1] for stage in presence.values() if step - 1 in stage.ends]
    took = (end - max(ends)) / 1_000 if ends and end is not None else None
    before = step_times(presence).values()
    return StageTime("trainer", took, statistics.median(before) if before else None, None)
