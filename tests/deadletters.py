"""Files of dead letters in tests: a real one, and some made as Fluent Bit makes them."""

import struct
import zlib
from pathlib import Path

import msgpack

from verl_ingest.deadletters import chunk
from verl_ingest.deadletters.chunk import Record
from verl_ingest.errors import InputError

# Written by Fluent Bit 5.1.1 of three metric lines and one without a time, with its retries used up.
REAL = Path(__file__).parent / "data" / "verl.records_0_records_0x7fb344113810.flb"
HEADER = 24
SECOND = 1_000_000_000
START = 1_772_380_800 * SECOND  # 2026-03-01T16:00:00Z


def encode(records: list[Record], *, checked: bool = False, padding: int = 0) -> bytes:
    """Return a file as chunkio writes it."""
    content = b"".join(
        msgpack.packb([[msgpack.ExtType(0, struct.pack(">II", *divmod(r.time_ns, SECOND))), {}], r.document])
        for r in records
    )
    crc = zlib.crc32(b"\0\0" + content) if checked else 0
    return struct.pack(">2sI4xI8xH", b"\xc1\0", crc, len(content), 0) + content + bytes(padding)


def decode(path: Path) -> tuple[list[Record], str | None]:
    """Return the records that can be read, and the sentence on what is wrong."""
    found: list[Record] = []
    try:
        for _, records in chunk.read(path):
            found += records
    except InputError as error:
        return found, str(error)
    return found, None
