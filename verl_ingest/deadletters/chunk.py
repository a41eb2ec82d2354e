"""A file of chunks that Fluent Bit rejected -> the records in it, in bounded memory.

Its layout is chunkio's (lib/chunkio/include/chunkio/cio_file_st.h of Fluent Bit), in network order:

    2 bytes   C1 00
    4         CRC32 of all from byte 22 to the end of the content; 0 where storage.checksum is off, as by default
    4         unused
    4         bytes of the content
    8         unused
    2         bytes of the metadata, which a rejected chunk has none of
              the metadata, then the content: msgpack, [[time, {}], record] after each other

The file may be longer than that, since it grows by whole pages. One that is rejected under the name of an earlier one
(names hold an address in memory) is appended to its content.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from verl_ingest.errors import InputError
from verl_ingest.load.reader import BLOCK_BYTES
from verl_ingest.normalise.lua_settings import LINE_BYTES

_HEADER = struct.Struct(">2sI4xI8xH")
_MARK = b"\xc1\x00"
_CHECKED_FROM = 22
_TIME = struct.Struct(">II")
_DEEPEST = 100  # the filter's documents are far flatter
# A damaged length may claim gigabytes.
_LIMITS = {"max_buffer_size": 4 * LINE_BYTES, "max_array_len": 1 << 20, "max_map_len": 1 << 20}
_DAMAGED = (msgpack.UnpackException, ValueError, TypeError)
_MENDED_BY = "load the logs of its runs again to bring what is lost"


@dataclass(frozen=True)
class Record:
    """What the agent's filter made of a line: its time in ns since 1970, and the document without it."""

    time_ns: int
    document: dict[str, Any]


def read(path: Path) -> Iterator[tuple[int, list[Record]]]:
    """Yield the records of each block of about 1 MiB, with the block's bytes.

    Of a damaged file, yields the records before the damage first; of one whose checksum does not fit, none, since any
    may be altered. Raises InputError for a damaged file, one that is no chunk, or can't be read.
    """
    try:
        with path.open("rb") as file:
            yield from _blocks(file, path)
    except OSError as error:
        raise InputError(f"{path}: the file can't be read: {error.strerror or error}.") from None


def _blocks(file: BinaryIO, path: Path) -> Iterator[tuple[int, list[Record]]]:
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MARK):
        raise InputError(f"{path}: this is no file of Fluent Bit's chunks; leave it out.")
    _, checksum, length, metadata = _HEADER.unpack(header)
    start = _HEADER.size + metadata
    whole = os.fstat(file.fileno()).st_size >= start + length
    if whole and checksum and checksum != _checksum(file, start + length):
        raise InputError(f"{path}: the checksum does not fit, so nothing of it is taken; {_MENDED_BY}.")
    file.seek(start)
    unpacker = msgpack.Unpacker(strict_map_key=False, unicode_errors="replace", **_LIMITS)
    left, end, count = length, 0, 0
    while part := file.read(min(left, BLOCK_BYTES)):
        left -= len(part)
        records = []
        try:
            unpacker.feed(part)
            for event in unpacker:
                records.append(_record(event))
                end = unpacker.tell()
        except _DAMAGED:
            left = 0
        count += len(records)
        yield len(part), records
    if end < length or not count:
        before = f"damaged at byte {start + end:,}, only the {count:,} records before that are taken"
        raise InputError(f"{path}: {before}; {_MENDED_BY}.")


def _checksum(file: BinaryIO, end: int) -> int:
    file.seek(_CHECKED_FROM)
    left, found = end - _CHECKED_FROM, 0
    while part := file.read(min(left, BLOCK_BYTES)):
        left -= len(part)
        found = zlib.crc32(part, found)
    return found


def _record(event: Any) -> Record:
    """Return an event of the stream as a record; raises ValueError or TypeError for anything else."""
    (time, _), document = event
    if not isinstance(time, msgpack.ExtType) or len(time.data) != _TIME.size or not isinstance(document, dict):
        raise ValueError
    seconds, nanoseconds = _TIME.unpack(time.data)
    return Record(seconds * 1_000_000_000 + nanoseconds, _printed(document, _DEEPEST))


def _printed(value: Any, depth: int) -> Any:
    """Return a value as Fluent Bit prints it, doubles to 16 digits; raises ValueError for what is no JSON."""
    if depth == 0 or isinstance(value, (bytes, msgpack.ExtType, msgpack.Timestamp)):
        raise ValueError
    if isinstance(value, float):
        return float(f"{value:.16g}")
    if isinstance(value, dict):
        return {str(name): _printed(each, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_printed(each, depth - 1) for each in value]
    return value
