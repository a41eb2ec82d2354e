"""What a block of lines should be in the store: one entry a document."""

import base64
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import orjson

from verl_ingest.normalise.lua import Block, Undated


class Entry(NamedTuple):
    """A document, and the index that it belongs to (a mere guess where the line has no time: not `dated`)."""

    event_id: str
    index: str
    dated: bool
    document: bytes

    @property
    def offset(self) -> int:
        """Where its line begins in the file: bytes 6 to 10 of the id."""
        return int.from_bytes(base64.urlsafe_b64decode(self.event_id)[6:11], "big")

    @property
    def run_id(self) -> str:
        """The run that the document names (a very long name is cut there)."""
        return orjson.loads(self.document)["run_id"]

    @property
    def reasons(self) -> list[str]:
        """Why it is flagged: its flags without the names behind them, as the normaliser counts them."""
        return [flag.partition(":")[0] for flag in orjson.loads(self.document).get("flags", ())]


def of_block(block: Block) -> list[Entry]:
    """Return the entries of a block, the dated ones first."""
    lines = block.dated.split(b"\n")
    actions = (orjson.loads(action)["index"] for action in lines[:-1:2])
    dated = [
        Entry(action["_id"], action["_index"], True, document)
        for action, document in zip(actions, lines[1::2], strict=True)
    ]
    return dated + [Entry(u.event_id, u.index, False, u.document.rstrip(b"\n")) for u in block.undated]


def to_block(entries: Iterable[Entry], block: Block) -> Block:
    """Return the block with these of its entries only, to be shipped."""
    kept = [(entry.dated, Undated(entry.index, entry.event_id, entry.document + b"\n")) for entry in entries]
    return replace(
        block,
        dated=b"".join(document.action() for dated, document in kept if dated),
        undated=tuple(document for dated, document in kept if not dated),
    )
