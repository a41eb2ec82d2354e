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
        yield of_error(name, "wrong", error)


def of_error(name: str, verdict: Verdict, error: KitError) -> Check:
    """Return the check on an error, whose sentence has its remedy in it."""
    found, _, remedy = str(error).partition("; ")
    return Check(name, verdict, f"{found}." if remedy else found, remedy.rstrip("."))
