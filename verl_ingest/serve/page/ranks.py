"""The ranks of a step by host and GPU: the worst three, the missing ones; hosts where nothing stands out are folded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.context.findings import WORDS, Finding
from verl_ingest.context.words import counted, number, ranges
from verl_ingest.query.store import Document

WORST = 3
MOST_HOSTS = 6


@dataclass(frozen=True)
class Place:
    """Where a rank runs, as far as its records say."""

    host: str | None = None
    gpu: int | None = None
    pid: int | None = None


@dataclass(frozen=True)
class Cell:
    """One rank: `state` is bad, missing or fine; `words` say why."""

    rank: int
    state: str
    words: str


@dataclass(frozen=True)
class Host:
    """One host and its ranks."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Worst:
    """A rank to look at, where it runs and why."""

    rank: int
    place: str
    reason: str


@dataclass(frozen=True)
class Ranks:
    """All ranks: what stands out, the hosts to show, and a sentence about the others."""

    worst: tuple[Worst, ...]
    missing: str
    hosts: tuple[Host, ...]
    others: str


def places(documents: Iterable[Document]) -> dict[int, Place]:
    """Return where each rank runs."""
    found: dict[int, dict[str, Any]] = {}
    for document in documents:
        if "rank" in document:
            place = found.setdefault(document["rank"], {})
            for name, field in (("host", "host.name"), ("gpu", "gpu.index"), ("pid", "process.pid")):
                if field in document:
                    place.setdefault(name, document[field])
    return {rank: Place(**place) for rank, place in found.items()}


def whereabouts(place: Place | None) -> str:
    """Write host, GPU and process of a rank."""
    if place is None:
        return ""
    parts = (("", place.host), ("GPU ", place.gpu), ("pid ", place.pid))
    return ", ".join(f"{word}{value}" for word, value in parts if value is not None)


def strip(body: Mapping[str, Any], findings: Sequence[Finding], where: Mapping[int, Place]) -> Ranks | None:
    """Return the ranks of a step; None where no record names one."""
    missing = sorted({rank for absent in body["missing_ranks"].values() for rank in absent})
    everyone = sorted({*body["ranks"], *missing})
    if not everyone:
        return None
    reasons = _reasons(body, findings)
    by_host: dict[str, list[Cell]] = {}
    for rank in everyone:
        place = where.get(rank, Place())
        state = "missing" if rank in missing else "bad" if rank in reasons else "fine"
        words = {"missing": "missing", "bad": reasons.get(rank, ""), "fine": "nothing stands out"}[state]
        by_host.setdefault(place.host or "host unknown", []).append(Cell(rank, state, words))
    hosts = [Host(name, tuple(cells)) for name, cells in by_host.items()]
    hosts.sort(key=lambda host: -sum(cell.state != "fine" for cell in host.cells))
    shown = hosts[:MOST_HOSTS]
    return Ranks(
        worst=tuple(Worst(rank, whereabouts(where.get(rank)), reasons[rank]) for rank in list(reasons)[:WORST]),
        missing=", ".join(ranges(missing)),
        hosts=tuple(sorted(shown, key=lambda host: host.cells[0].rank)),
        others=_others(hosts[MOST_HOSTS:]),
    )


def _others(hosts: Sequence[Host]) -> str:
    if not hosts:
        return ""
    cells = [cell for host in hosts for cell in host.cells]
    bad = sum(cell.state != "fine" for cell in cells)
    return f"{counted(len(hosts), 'more host')} with {counted(len(cells), 'rank')}, " + (
        f"{bad} of them stand out" if bad else "none of them stands out"
    )


def _reasons(body: Mapping[str, Any], findings: Sequence[Finding]) -> dict[int, str]:
    """Return why a rank stands out, the worst first."""
    found: dict[int, str] = {}
    for error in body["errors"]:
        trouble = troubles.load()[error["kind"]]
        if not trouble.consequence or len(error["ranks"]) <= WORST:  # what all ranks had says nothing of one
            for rank in error["ranks"]:
                found.setdefault(rank, trouble.short)
    for entry in body["nonfinite"]:
        if entry["rank"] is not None:
            found.setdefault(entry["rank"], f"{entry['metric']} is {WORDS[entry['kind']]}")
    for straggler in body["stragglers"]:
        found.setdefault(straggler["rank"], f"{straggler['metric']} {straggler['ratio']:.1f} times the others'")
    values = {entry["name"]: entry for entry in body["metrics"] if entry["values"]}
    for finding in findings:
        entry = next((values[name] for name in finding.metrics if name in values), None)
        if finding.rank is not None and entry is not None and str(finding.rank) in entry["values"]:
            value = number(entry["values"][str(finding.rank)], entry["unit"] or "")
            found.setdefault(finding.rank, f"{entry['name']} {value}")
    return found
