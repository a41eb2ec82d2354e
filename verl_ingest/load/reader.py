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
        raise InputError(f"{file.path}: the compressed file is damaged: {error}.") from None
    except OSError as error:
        raise InputError(f"{file.path}: the file can't be read: {error.strerror or error}.") from None


def _blocks(stream: BinaryIO, file: LogFile, *, final: bool) -> Iterator[Lines | Unfinished]:
    offset, rest, first = 0, b"", True
    while chunk := stream.read(BLOCK_BYTES):
        if first and is_binary(chunk):
            raise InputError(f"{file.path}: this is a binary file, not a log; leave it out.")
        first = False
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if end:
            yield Lines(data[:end], offset, end)
            offset, rest = offset + end, data[end:]
        elif len(data) > LINE_BYTES:
            skipped, rest = _skip_line(stream, len(data), final=final)
            if skipped is None:
                yield Unfinished(offset, len(data))
                return
            yield Lines(data[:LINE_BYTES] + b"\n", offset, skipped)
            offset += skipped
        else:
            rest = data
    if rest and final:
        yield Lines(rest + b"\n", offset, len(rest))
    elif rest:
        yield Unfinished(offset, len(rest))


def _skip_line(stream: BinaryIO, read: int, *, final: bool) -> tuple[int | None, bytes]:
    """Read on to the end of a long line; return its whole length, None where it has no end, and what follows it."""
    while chunk := stream.read(BLOCK_BYTES):
        end = chunk.find(b"\n") + 1
        if end:
            return read + end, chunk[end:]
        read += len(chunk)
    return (read if final else None), b""
