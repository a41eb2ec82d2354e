"""How what the kit keeps on a server differs from what it should be: rows of a comparison -> one check."""

from collections.abc import Sequence

from verl_ingest.changes import Row
from verl_ingest.checks.check import SEVERITY, Check, Verdict
from verl_ingest.context.words import counted, listed

_NAMED = 3
APPLY = "run `verl-ingest apply`"
BY_HAND = f"`verl-ingest apply --dry-run` shows the difference, {APPLY} --overwrite to take the kit's"


def judge(name: str, rows: Sequence[Row], *, lacking: Verdict, strange: Verdict) -> Check:
    """Return the verdict on all rows: `lacking` where one is missing or stale, `strange` where one is not the kit's.

    Stale is what another version of the kit wrote, or other settings did.
    """
    missing, stale, others = (_names(rows, state) for state in ("created", "updated", "differs"))
    found = [f"{_several(missing)} not there"] if missing else []
    found += [f"{_several(stale)} of another version of the kit or of other settings"] if stale else []
    found += [f"{_several(others)} {next(row.why for row in rows if row.state == 'differs')}"] if others else []
    if not found:
        return Check(name, "fine", f"{counted(len(rows), 'asset')} as the kit wants them.")
    sentence = f"{listed(found)}."
    sentence = sentence[0].upper() + sentence[1:]
    verdict = max(lacking if missing or stale else "fine", strange if others else "fine", key=SEVERITY.index)
    remedy = BY_HAND if others else APPLY
    return Check(name, verdict, sentence, "" if verdict == "fine" else remedy)


def _names(rows: Sequence[Row], state: str) -> list[str]:
    return [row.name for row in rows if row.state == state]


def _several(names: Sequence[str]) -> str:
    """Write who is meant, and the verb that follows: many are counted."""
    if len(names) > _NAMED:
        return f"{len(names)} assets ({names[0]}, ...) are"
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"
