"""What a check found."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from verl_ingest.errors import KitError

# fine; watch: worth a look, nothing is lost; wrong: something is lost, refused or will not work;
# unknown: not found out.
Verdict = Literal["fine", "watch", "wrong", "unknown"]
SEVERITY: Sequence[Verdict] = ("fine", "unknown", "watch", "wrong")


@dataclass(frozen=True)
class Check:
    """One verdict: `name` is what was looked at, `found` a sentence on it, `remedy` what to do next; none when fine."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def answered(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what `look` finds; a KitError becomes a wrong check of that name."""
    try:
        yield from look()
    except KitError as error:
        yield said(name, "wrong", str(error))


def said(name: str, verdict: Verdict, sentence: str, remedy: str = "") -> Check:
    """Return the check on what a sentence says, which has its remedy in it; `remedy` is for one that has none."""
    found, _, own = sentence.partition("; ")
    return Check(name, verdict, f"{found}." if own else found, own.rstrip(".") or remedy)
