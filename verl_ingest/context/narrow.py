"""Narrow a step's context to one stage or one rank."""

from dataclasses import replace

from verl_ingest.context.step import StepContext
from verl_ingest.errors import NotFound


def to_stage(context: StepContext, stage: str) -> StepContext:
    """Keep what belongs to a stage; raises NotFound when the step has nothing of it."""
    body = context.body
    stages = [entry["stage"] for entry in body["stages"]]
    if stage not in stages:
        raise NotFound(
            f"Step {body['step']} of run '{body['run_id']}' has no stage '{stage}'; it has {', '.join(stages)}."
        )
    kept = {
        "missing_ranks": {name: ranks for name, ranks in body["missing_ranks"].items() if name == stage},
        **{
            part: [entry for entry in body[part] if entry["stage"] == stage]
            for part in ("stages", "metrics", "nonfinite", "stragglers")
        },
    }
    return replace(context, body=body | kept)


def to_rank(context: StepContext, rank: int) -> StepContext:
    """Keep what a rank logged, pooled numbers beside it; raises NotFound when the rank logged nothing."""
    body = context.body
    if rank not in body["ranks"]:
        raise NotFound(
            f"Step {body['step']} of run '{body['run_id']}' has no rank {rank}; it has "
            f"{', '.join(map(str, body['ranks'])) or 'no ranks'}."
        )
    metrics = [metric for metric in body["metrics"] if str(rank) in metric["values"]]
    kept = {
        "ranks": [rank],
        "metrics": [metric | {"values": {str(rank): metric["values"][str(rank)]}} for metric in metrics],
        **{part: [entry for entry in body[part] if entry["rank"] == rank] for part in ("nonfinite", "stragglers")},
        **{part: [entry for entry in body[part] if rank in entry["ranks"]] for part in ("errors", "logs")},
    }
    return replace(context, body=body | kept)
