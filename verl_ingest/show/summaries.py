"""What summarising a run did, for the terminal."""

import time

from verl_ingest.context.words import counted, ranges
from verl_ingest.summarise.run import Changes

_NAMED = 8  # rows of steps that are named; more are counted


def whole(changes: Changes, run_id: str) -> str:
    """Return the sentence on a look through a whole run."""
    removed = f", {changes.removed:,} removed" if changes.removed else ""
    return (
        f"Step summaries of {run_id}: {len(changes.new):,} new, {len(changes.again):,} made again, "
        f"{changes.kept:,} were up to date{removed}."
    )


def line(changes: Changes, *, at: time.struct_time) -> str:
    """Return the line on a look that changed something."""
    parts = [f"{_steps(changes.new)} new"] if changes.new else []
    parts += [f"{_steps(changes.again)} made again"] if changes.again else []
    parts += [f"{changes.removed:,} removed"] if changes.removed else []
    return f"{time.strftime('%H:%M:%S', at)}  {'; '.join(parts)}"


def _steps(steps: list[int]) -> str:
    rows = ranges(sorted(set(steps)))
    if len(rows) > _NAMED:
        return counted(len(steps), "step")
    return f"step{'' if len(steps) == 1 else 's'} {', '.join(rows)}"
