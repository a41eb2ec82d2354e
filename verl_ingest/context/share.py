"""The share of samples or records that fulfil a condition, such as `reward < 0.1`."""

import re
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.words import counted, number
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import Condition, RunReader, Share, Store
from verl_ingest.query.times import iso

SAMPLE_SCORES = ("reward", "score")
OPERATORS = ("<=", ">=", "==", "!=", "<", ">")
CONDITION = re.compile(rf"\s*(?P<name>[^<>=!]+?)\s*(?P<operator>{'|'.join(OPERATORS)})\s*(?P<number>[^\s<>=!]+)\s*")


@dataclass(frozen=True)
class Answer:
    """A share, and all that is needed to trust it."""

    text: str
    condition: Condition
    share: Share
    since: int
    until: int
    run_id: str | None
    at_end: bool  # whether the window ends at the run's last value

    def entry(self) -> dict[str, Any]:
        """Return the answer as `share --json` has it."""
        return {
            "condition": self.text,
            "of": "records" if self.condition.names else "samples",
            "names": list(self.condition.names),
            "share": self.share.hits / self.share.n,
            "hits": self.share.hits,
            "n": self.share.n,
            "nonfinite": self.share.nonfinite,
            "splits": dict(self.share.parts),
            "window": {"since": iso(self.since), "until": iso(self.until)},
            "run_id": self.run_id,
        }

    def sentence(self) -> str:
        """Say the share, n and the window."""
        share, one = self.share, _noun(self.condition)
        parts = [f"{count:,} {split}" for split, count in sorted(share.parts.items())]
        splits = f" ({', '.join(parts)})" if len(parts) > 1 else ""
        were = "was" if share.nonfinite == 1 else "were"
        nonfinite = f"; {share.nonfinite:,} more {were} NaN or infinite" if share.nonfinite else ""
        run = f" of run {self.run_id}" if self.run_id is not None else ""
        end = f" (its last {one})" if self.at_end else ""
        return (
            f"{number(100 * share.hits / share.n)} % of {counted(share.n, one)}{splits} "
            f"{'has' if share.n == 1 else 'have'} {self.text}: {share.hits:,}{nonfinite}. "
            f"Window{run}: {iso(self.since)[:19]} to {iso(self.until)[:19]} UTC{end}."
        )


def parse(text: str, catalogue: Catalogue) -> Condition:
    """Read `NAME OP NUMBER`; raises InputError.

    `reward` and `score` are the scores of samples. Any other name is a metric as printed in the logs, or a name of the
    metric catalogue, which stands for all its spellings.
    """
    match = CONDITION.fullmatch(text)
    value = _finite(match["number"]) if match else None
    if value is None:
        raise InputError(
            f"'{text}' is not a condition; write a name, one of {' '.join(OPERATORS)} and a number: 'reward < 0.1'."
        )
    name = match["name"]
    if name in SAMPLE_SCORES:
        return Condition(name, (), match["operator"], value)
    metric = catalogue.find(name)
    names = metric.names if metric is not None and metric.name == name else (name,)
    return Condition(name, names, match["operator"], value)


def ask(
    store: Store, text: str, *, length: int, until: int | None, run: RunReader | None, catalogue: Catalogue, now: int
) -> Answer:
    """Return the share in the window of `length` before `until`; that is now, or the run's last value, where None.

    Times are in ms. Raises InputError for a bad condition, NotFound when the window has no values.
    """
    condition = parse(text, catalogue)
    end, run_id = until, run.run_id if run is not None else None
    if end is None:
        end = now if run is None else _end(run, condition)
    share = store.share(condition, since=end - length, until=end, run_id=run_id)
    if share.n == 0:
        hint = "name a run with --run, whose window ends with its last one" if run is None else "leave out --until"
        raise NotFound(
            f"No {_wanted(condition, run_id)} from {iso(end - length)[:19]} to {iso(end)[:19]} UTC; widen the window "
            f"with --last, or {hint}."
        )
    at_end = run is not None and until is None
    return Answer(text.strip(), condition, share, end - length, end, run_id, at_end)


def _end(run: RunReader, condition: Condition) -> int:
    last = run.last_time(condition)
    if last is None:
        hint = "reward and score ask its samples" if condition.names else "other names, such as kl_ref, ask its records"
        raise NotFound(f"No {_wanted(condition, run.run_id)}; {hint}.")
    return last + 1


def _noun(condition: Condition) -> str:
    return "record" if condition.names else "sample"


def _wanted(condition: Condition, run_id: str | None) -> str:
    of = f" of run '{run_id}'" if run_id is not None else ""
    has = f"has the metric {condition.name}" if condition.names else "has a score"
    return f"{_noun(condition)}{of} {has}"


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
