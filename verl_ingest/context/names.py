"""From what a user types to a run and a step."""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import attempts, onset, why
from verl_ingest.context.dates import settled
from verl_ingest.context.words import counted
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import LAST_STEP, RunReader, Store
from verl_ingest.query.times import parse_time

NEWEST_RUN = "@last"
NO_RUNS = "There are no runs yet; `verl-ingest load PATH` brings in the logs of one."
SHOWN = 8


@contextmanager
def open_run(store: Store, text: str) -> Iterator[RunReader]:
    """Open the run of that name, the only one whose name starts so, or the one that logged last (`@last`).

    Raises NotFound with the nearest names, InputError with the matches where there are several.
    """
    with store.open(find_run(store, text)) as run:
        yield run


def find_run(store: Store, text: str) -> str:
    """Return the run that `text` means; raises as `open_run` does."""
    if text == NEWEST_RUN:
        newest = store.newest_run()
        if newest is None:
            raise NotFound(NO_RUNS)
        return newest
    matches = store.run_ids(text)
    if text in matches or len(matches) == 1:
        return text if text in matches else matches[0]
    if matches:
        raise InputError(f"'{text}' is the beginning of {len(matches)} runs: {_some(matches)}; write more of the name.")
    known = store.run_ids()
    near = _alike(text, known)
    if near:
        raise NotFound(f"There is no run '{text}'; did you mean {' or '.join(near)}?")
    raise NotFound(f"There is no run '{text}'; {f'there are {_some(known)}' if known else 'there are none yet'}.")


def similar(store: Store, text: str) -> list[str]:
    """Return the runs whose name begins so, else those whose name is the most alike."""
    return store.run_ids(text)[:SHOWN] or _alike(text, store.run_ids())


def find_step(run: RunReader, text: str, *, catalogue: Catalogue, now: int, window: int) -> int:
    """Return the step that `text` means.

    A number, `last` or a negative number (counted from the last one), `first-bad` (where the trouble that `why` tells
    of began; of a run whose last steps are all normal the first abnormal one), or a time (the step at that time).
    Raises NotFound when there is no such step, InputError when it is none of these.
    """
    if re.fullmatch(r"\d+", text):
        return step_number(text)
    if re.fullmatch(r"-[1-9]\d*", text) or text == "last":
        return _from_the_end(run, 1 if text == "last" else -int(text))
    if text == "first-bad":
        step = why.explain(run, catalogue=catalogue, now=now, window=window).first_bad
        if step is None:
            step = onset.first_bad(run, catalogue=catalogue, now=now, window=window)
        if step is None:
            raise NotFound(f"No step of run '{run.run_id}' is abnormal; `last` shows the newest one.")
        return step
    if re.match(r"\d{4}-\d\d-\d\d", text):
        step = run.step_at(parse_time(text), {})
        if step is None:
            raise NotFound(f"Run '{run.run_id}' has no records with a step.")
        return step
    raise InputError(
        f"'{text}' is not a step; write a number, last, -2 (from the end), first-bad, "
        "or a time such as 2026-03-01T16:26."
    )


def step_number(text: str) -> int:
    """Read digits as a step; raises InputError where no document can have it (the store takes 64 bits at most)."""
    if len(text) > len(str(LAST_STEP)) or int(text) > LAST_STEP:
        raise InputError(f"Step {text[:20]} is too large; steps are at most {LAST_STEP}.")
    return int(text)


def _alike(text: str, known: list[str]) -> list[str]:
    return difflib.get_close_matches(text, known, n=3, cutoff=0.4)


def _from_the_end(run: RunReader, back: int) -> int:
    """Count back from the last step of the attempt that runs now; an earlier one may have reached a higher step."""
    last = run.steps(size=1, newest_first=True)
    documents = settled(run.records(last[0])) if last else []
    known = attempts.find(run, documents)
    newest = not known or max(attempts.part(documents, known)) == len(known)
    high = None if newest else known[-1].last_step
    steps = run.steps(high=high, size=back, newest_first=True)
    if len(steps) < back:
        raise NotFound(f"Run '{run.run_id}' has only {counted(len(steps), 'step')}.")
    return steps[-1]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
