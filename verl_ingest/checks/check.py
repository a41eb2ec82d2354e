"""What a check found."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from verl_ingest.errors import KitError

# fine; watch: worth a look, nothing is lost; wrong: something is lost, refused or will not work;
# unknown: not found out.
Verdict = Literal["fine", "watch", "wrong", "unknown"]


@dataclass(frozen=True)
class Check:
    """One verdict: `name` is what was looked at, `found` a sentence on it, `remedy` what to do next; none when fine."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""


def answered(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what `look` finds; a KitError, whose sentence has its remedy in it, becomes a wrong check of that name."""
    try:
        yield from look()
    except KitError as error:
        found, _, remedy = str(error).partition("; ")
        yield Check(name, "wrong", f"{found}." if remedy else found, remedy)
