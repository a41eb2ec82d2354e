"""How what the kit keeps on a server differs from what it should be: rows of a comparison -> one check."""

from collections.abc import Sequence

from verl_ingest.changes import Row
from verl_ingest.checks.check import SEVERITY, Check, Verdict
from verl_ingest.context.words import counted, listed

_NAMED = 3
APPLY = "run `verl-ingest apply`"
_SHOWN = "`verl-ingest apply --dry-run` shows the difference"
BY_HAND = f"{_SHOWN}, `verl-ingest apply --overwrite` takes the kit's"
BY_HAND_AT_DEPLOY = f"{_SHOWN}, `verl-ingest deploy --overwrite` takes the kit's"


def judge(name: str, rows: Sequence[Row], *, lacking: Verdict, before_apply: bool = False) -> Check:
    """Return the verdict on all rows: `lacking` where one is missing or stale, to watch where one is not the kit's.

    Stale is what another version of the kit wrote, or other settings did. Where a deployment is about to apply, what
    is missing or stale is fine, and what is not the kit's is wrong.
    """
    missing, stale, others = (_names(rows, state) for state in ("created", "updated", "differs"))
    absent, old = "not there", "of another version of the kit or of other settings"
    if before_apply:
        absent, old = "to be created", "to be updated"
    found = [f"{_several(missing)} {absent}"] if missing else []
    found += [f"{_several(stale)} {old}"] if stale else []
    found += [f"{_several(others)} {next(row.why for row in rows if row.state == 'differs')}"] if others else []
    if not found:
        return Check(name, "fine", f"{counted(len(rows), 'asset')} as the kit wants them.")
    sentence = f"{listed(found)}."
    sentence = sentence[0].upper() + sentence[1:]
    if before_apply:
        return Check(name, "wrong", sentence, BY_HAND_AT_DEPLOY) if others else Check(name, "fine", sentence)
    verdicts: list[Verdict] = [*([lacking] if missing or stale else []), *(["watch"] if others else [])]
    return Check(name, max(verdicts, key=SEVERITY.index), sentence, BY_HAND if others else APPLY)


def _names(rows: Sequence[Row], state: str) -> list[str]:
    return [row.name for row in rows if row.state == state]


def _several(names: Sequence[str]) -> str:
    """Write who is meant, and the verb that follows: many are counted."""
    if len(names) > _NAMED:
        return f"{len(names)} assets ({names[0]}, ...) are"
    return f"{listed(names)} {'is' if len(names) == 1 else 'are'}"
