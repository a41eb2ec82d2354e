"""The errors of a step: which one is to blame, what they are, what followed from it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.catalog.troubles import Trouble
from verl_ingest.context.words import counted, first_line, gist, listed, pids, ranks
from verl_ingest.query.times import parse_time

FRAMES = 3
MOST_AFTER = 3
MOST_RANKS = 4  # of more, their count is said
NEAR_MS = 60_000  # a traceback that travels to its caller is printed that late
KIND = 80  # characters of an error that no trouble fits
_FRAME = re.compile(r'^ *File "[^"\n]+", line \d+, in [^\n]+(?:\n(?! *File ")[^\n]+)?', re.MULTILINE)
_GPU = re.compile(r"\bGPU (\d+) has a total capacity")

Entry = Mapping[str, Any]


def blamed(errors: Sequence[Entry], hosts: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the errors (folded, in order of true time), the one to blame first.

    That is the first one, but an error that is usually a consequence yields to another kind that came soon after it,
    and a process's line of no known kind (`update_actor failed`) to the known one whose traceback it logs soon after.
    Each says its trouble (`kind`), its host by that of its rank, its GPU where it names one, and its innermost frames.
    """
    found = [
        {
            **error,
            "host": error["host"] or next((hosts[rank] for rank in error["ranks"] if rank in hosts), None),
            "kind": trouble_of(error).name,
            "gpu": _gpu(error),
            "frames": frames(error["stack_trace"] or ""),
        }
        for error in errors
    ]
    for number, error in enumerate(found[1:], 1):
        is_soon = parse_time(error["time"]) <= parse_time(found[0]["time"]) + NEAR_MS
        if is_soon and not trouble_of(error).consequence and _yields(found[0], error):
            return [error, *found[:number], *found[number + 1 :]]
    return found


def _yields(first: Entry, other: Entry) -> bool:
    """Tell whether the first error is rather to be blamed on the other, which is no consequence."""
    if trouble_of(first).consequence:
        return True
    names = [trouble_of(error).name for error in (first, other)]
    is_explained = names[0] == troubles.ANY_ERROR != names[1] and other["stack_trace"] is not None
    return is_explained and any(set(first[by]) & set(other[by]) for by in ("ranks", "pids"))


def trouble_of(error: Entry) -> Trouble:
    """Return the trouble that an error is, by its last line or else its stack."""
    said = troubles.said_in(error["message"]) or troubles.said_in(error["stack_trace"] or "")
    return said or troubles.load()[troubles.ANY_ERROR]


def sentence(errors: Sequence[Entry]) -> str:
    """Say the error to blame, and what followed: `; then rank 5: NCCL error`."""
    first = errors[0]
    where = _where(first["ranks"], first["pids"])
    after = consequences(errors)
    then = f"; then {listed(after)}" if after else ""
    message = gist(first["message"])
    message = message if message.endswith("..") else message.removesuffix(".")
    text = f"First error{f' on {where}' if where else ''}: {message}{then}"
    return text if text.endswith(("…", ".")) else f"{text}."


def consequences(errors: Sequence[Entry]) -> list[str]:
    """Say what followed the first error, folded by kind; a repetition of it by the same process is no news."""
    groups: dict[str, list[Entry]] = {}
    first = errors[0]
    for error in errors[1:]:
        trouble = trouble_of(error)
        known = trouble.name != troubles.ANY_ERROR
        by = "ranks" if error["ranks"] else "pids"
        own = bool(error[by]) and set(error[by]) <= set(first[by])
        if not (known and own and trouble == trouble_of(first)):
            groups.setdefault(trouble.short if known else first_line(error["message"], KIND), []).append(error)
    said = [_fold(kind, group) for kind, group in groups.items()]
    rest = sum(error["count"] for group in list(groups.values())[MOST_AFTER:] for error in group)
    return said[:MOST_AFTER] + ([counted(rest, "more error")] if rest else [])


def frames(stack: str) -> list[str]:
    """Return the innermost frames of a stack, each with its line of code where that is there."""
    return [frame.group().strip() for frame in _FRAME.finditer(stack)][-FRAMES:]


def _fold(kind: str, group: Sequence[Entry]) -> str:
    on = sorted({rank for error in group for rank in error["ranks"]})
    processes = sorted({pid for error in group for pid in error["pids"]})
    where = counted(len(on), "rank") if len(on) > MOST_RANKS else _where(on, processes)
    return f"{where}: {kind}" if where else kind


def _where(on: Sequence[int], processes: Sequence[int]) -> str:
    return ranks(on) if on else pids(processes)


def _gpu(error: Entry) -> int | None:
    named = _GPU.search(error["message"])
    return int(named[1]) if named else None
