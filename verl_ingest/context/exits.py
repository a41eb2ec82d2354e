"""How a run ended, or that it goes on."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.context import errors
from verl_ingest.context.runs import Run
from verl_ingest.context.words import duration

SILENT = "silent"


@dataclass(frozen=True)
class Exit:
    """State of the run (see runs.py), and why it ended: a trouble of troubles.yml, None where nothing is wrong.

    `alive` says whether the run goes on, None where the logs don't tell.
    """

    state: str
    reason: str | None
    alive: bool | None
    sentence: str

    def entry(self) -> dict[str, Any]:
        """Return the exit as `why --json` has it."""
        return {"state": self.state, "reason": self.reason, "alive": self.alive, "sentence": self.sentence}


def tell(run: Run, failed: Sequence[Mapping[str, Any]]) -> Exit:
    """Say how a run ended; `failed` are the errors after its last step, the one to blame first."""
    at = "before its first step" if run.step is None else f"after step {run.step}"
    age = duration(run.age_s)
    if run.state == "finished":
        return Exit("finished", None, False, f"Finished: step {run.step} of {run.setup.total_steps} is there.")
    if run.state == "running":
        return Exit("running", None, True, f"Running: its last record is {age} old.")
    if run.state == "unknown":
        return Exit("unknown", None, None, f"Nothing tells whether it runs: {run.note}.")
    if run.state == "crashed":
        trouble = errors.trouble_of(failed[0]) if failed else troubles.load()[troubles.ANY_ERROR]
        when = f" ({run.note})" if run.last is None else f", {age} ago"
        return Exit("crashed", trouble.name, False, f"Crashed {at}{when}: {trouble.short}.")
    pace = f", where a step took {duration(statistics.median(run.pace))}" if run.pace else ""
    sentence = f"Silent {at}, for {age}{pace}, without an error: it hangs, was killed or stopped, or its logs did."
    return Exit(run.state, SILENT, None, sentence)


def of_attempt(number: int, last_step: int, lost: str, failed: Sequence[Mapping[str, Any]]) -> str:
    """Say how an attempt ended that another one followed; `lost` names the ranks that its last step lacks."""
    why = f": {errors.trouble_of(failed[0]).short}" if failed else ""
    without = f", without {lost}" if lost else ""
    return f"Attempt {number} ended at step {last_step}{without}{why}."
