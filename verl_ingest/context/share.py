"""The share of samples or records that fulfil a condition, such as `reward < 0.1`."""

import re
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.words import number
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import Condition, Share, Store
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
        share, of = self.share, "records" if self.condition.names else "samples"
        parts = [f"{count:,} {split}" for split, count in sorted(share.parts.items())]
        splits = f" ({', '.join(parts)})" if len(parts) > 1 else ""
        nonfinite = f"; {share.nonfinite:,} more were NaN or infinite" if share.nonfinite else ""
        run = f" of run {self.run_id}" if self.run_id is not None else ""
        return (
            f"{number(100 * share.hits / share.n)} % of {share.n:,} {of}{splits} have {self.text}: {share.hits:,}"
            f"{nonfinite}. Window{run}: {iso(self.since)[:19]} to {iso(self.until)[:19]} UTC."
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


def ask(store: Store, text: str, *, since: int, until: int, run_id: str | None, catalogue: Catalogue) -> Answer:
    """Return the share in the window; raises InputError for a bad condition, NotFound when the window has no values."""
    condition = parse(text, catalogue)
    share = store.share(condition, since=since, until=until, run_id=run_id)
    if share.n == 0:
        of = f" of run '{run_id}'" if run_id is not None else ""
        what = f"record{of} has the metric {condition.name}" if condition.names else f"sample{of} has a score"
        raise NotFound(
            f"No {what} from {iso(since)[:19]} to {iso(until)[:19]} UTC; widen the window with --last or move "
            "it with --until."
        )
    return Answer(text.strip(), condition, share, since, until, run_id)


def _finite(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
