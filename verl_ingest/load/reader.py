"""Log files as blocks of whole lines, in bounded memory."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from verl_ingest.errors import InputError
from verl_ingest.load.files import LogFile, is_binary
from verl_ingest.normalise.lua_settings import LINE_BYTES

BLOCK_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Lines:
    """Whole lines, each ended by a newline, and the offset of the first; `read` is the size they had in the file."""

    data: bytes
    offset: int
    read: int


@dataclass(frozen=True)
class Unfinished:
    """The bytes behind the last newline: a line that its writer has not finished."""

    offset: int
    read: int


def read(file: LogFile, *, final: bool) -> Iterator[Lines | Unfinished]:
    """Yield a file's lines in blocks of about 1 MiB; with `final` the last line counts without its newline too.

    A line longer than LINE_BYTES is yielded cut to that length, as the agent cuts it. Offsets count the bytes of the
    text, also in a compressed file. Raises InputError for a file that can't be read, or is no text.
    """
    try:
        with file.path.open("rb") as raw:
            if raw.peek(2)[:2] == _GZIP:
                with gzip.open(raw) as text:
                    yield from _blocks(text, file, final=final)
            else:
                yield from _blocks(raw, file, final=final)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        why = str(error).rstrip(".")
        raise InputError(
            f"{file.path}: the compressed file is damaged, only what is before that is taken: {why}."
        ) from None
    except OSError as error:
        raise InputError(f"{file.path}: the file can't be read: {error.strerror or error}.") from None


def _blocks(stream: BinaryIO, file: LogFile, *, final: bool) -> Iterator[Lines | Unfinished]:
    offset, held, skipped = 0, b"", 0  # of the line begun last: where it is, its text, what was cut from it so far
    first = True
    for chunk in _chunks(stream):
        if first and is_binary(chunk):
            raise InputError(f"{file.path}: this is a binary file, not a log; leave it out.")
        first = False
        if skipped:
            end = chunk.find(b"\n") + 1
            if not end:
                skipped += len(chunk)
                continue
            yield Lines(held + b"\n", offset, len(held) + skipped + end)
            offset, held, skipped, chunk = offset + len(held) + skipped + end, b"", 0, chunk[end:]
        data = held + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield Lines(data[:end], offset, end)
        offset, held = offset + end, data[end:]
        if len(held) > LINE_BYTES:
            held, skipped = held[:LINE_BYTES], len(held) - LINE_BYTES
    if held:
        read = len(held) + skipped
        yield Lines(held + b"\n", offset, read) if final else Unfinished(offset, read)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield about BLOCK_BYTES at a time; of a damaged file first what it gives, then its error."""
    held = b""
    try:
        while part := stream.read1(BLOCK_BYTES):  # type: ignore[attr-defined]
            held += part
            if len(held) >= BLOCK_BYTES:
                yield held
                held = b""
    except (EOFError, zlib.error, gzip.BadGzipFile):
        if held:
            yield held
        raise
    if held:
        yield held
