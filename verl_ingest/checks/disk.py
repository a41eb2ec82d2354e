"""Room on the disks of the server's nodes, against the watermarks at which it stops taking documents."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticsearch import Elasticsearch
from rich.filesize import decimal

from verl_ingest.checks.check import Check
from verl_ingest.index.mappings import EVERY_PATTERN

NAME = "disk"
_WATERMARK = "cluster.routing.allocation.disk.watermark."
_UNITS = {"b": 0, "kb": 1, "mb": 2, "gb": 3, "tb": 4, "pb": 5}
_SIZE = re.compile(r"([\d.]+)([kmgtp]?b)")


@dataclass(frozen=True)
class Disk:
    """The disk of one node that keeps data, in bytes."""

    node: str
    total: int
    free: int


@dataclass(frozen=True)
class Watermark:
    """A share or size as the server's settings have it, and the free bytes that it never asks more than."""

    limit: str
    most: str

    def least_free(self, total: int) -> float:
        """Return how many bytes of a disk must be free."""
        if (size := _bytes(self.limit)) is not None:
            return size
        used = float(self.limit.removesuffix("%")) / (100 if self.limit.endswith("%") else 1)
        most = _bytes(self.most)
        return total * (1 - used) if most is None else min(total * (1 - used), most)


def check(server: Elasticsearch) -> Iterator[Check]:
    """Look at the disks and at the indices that a full one has locked; raises what the client raises."""
    set_ = server.cluster.get_settings(include_defaults=True, flat_settings=True)
    values = {**set_["defaults"], **set_["persistent"], **set_["transient"]}
    yield judge(_disks(server), {name: _watermark(values, name) for name in ("low", "high", "flood_stage")})
    if locked := _locked(server):
        yield Check(
            "locked indices",
            "wrong",
            f"A full disk has locked {', '.join(locked)} against writing.",
            "add space or delete old days (`verl-ingest retention`); Elasticsearch unlocks them by itself",
        )


def judge(disks: Sequence[Disk], watermarks: Mapping[str, Watermark]) -> Check:
    """Return the verdict on the disk that is nearest to its limit."""
    if not disks:
        return Check(NAME, "unknown", "The server names no disk of a node that keeps data.", "see its log")
    worst = min(disks, key=lambda disk: disk.free - watermarks["flood_stage"].least_free(disk.total))
    least = {name: mark.least_free(worst.total) for name, mark in watermarks.items()}
    room = f"Node {worst.node} has {decimal(worst.free)} of {decimal(worst.total)} free"
    remedy = "add space, or delete old days (`verl-ingest retention`)"
    if worst.free < least["flood_stage"]:
        return Check(NAME, "wrong", f"{room}: too little to write, its indices are locked.", remedy)
    if worst.free < least["high"]:
        return Check(NAME, "wrong", f"{room}: too little for the next day's index to be made.", remedy)
    if worst.free < least["low"]:
        return Check(NAME, "watch", f"{room}: too little for copies of new indices.", remedy)
    return Check(NAME, "fine", f"{room}; writing stops below {decimal(round(least['flood_stage']))}.")


def _disks(server: Elasticsearch) -> list[Disk]:
    found = server.nodes.stats(metric="fs", filter_path="nodes.*.name,nodes.*.roles,nodes.*.fs.total").get("nodes", {})
    return [
        Disk(node["name"], node["fs"]["total"]["total_in_bytes"], node["fs"]["total"]["available_in_bytes"])
        for node in found.values()
        if any(role.startswith("data") for role in node.get("roles", ()))
    ]


def _watermark(values: Mapping[str, Any], name: str) -> Watermark:
    return Watermark(values[_WATERMARK + name], values.get(f"{_WATERMARK}{name}.max_headroom", "-1"))


def _locked(server: Elasticsearch) -> list[str]:
    block = "index.blocks.read_only_allow_delete"
    found = server.indices.get_settings(index=EVERY_PATTERN, name=block, flat_settings=True)
    return sorted(name for name, index in found.items() if index["settings"].get(block) == "true")


def _bytes(text: str) -> float | None:
    """Return a size in bytes, None for what is none: a share, or -1 for no limit."""
    match = _SIZE.fullmatch(text.lower())
    return float(match[1]) * 1024 ** _UNITS[match[2]] if match else None
