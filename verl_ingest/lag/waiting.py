"""What waits to be delivered: Fluent Bit's chunk files, by input."""

import re
from collections.abc import Sequence
from pathlib import Path

from verl_ingest.edge import fluentbit
from verl_ingest.errors import InputError
from verl_ingest.lag.facts import Waiting
from verl_ingest.lag.offsets import state_folder
from verl_ingest.settings import Settings

_FOLDER = re.compile(r"\w+\.(\d+)")  # the input's kind and number
_CHUNK = re.compile(r"\d+-(\d+)\.\d+\.flb")  # process and time


def read(settings: Settings, *, now: float) -> list[Waiting]:
    """Return what waits for each input that has something waiting; `now` is in seconds since 1970.

    Raises InputError where the agent's folder can't be read.
    """
    storage = state_folder(settings) / "storage"
    if not storage.exists():
        return []
    inputs = [(tail["family"], tail["tag"]) for tail in fluentbit.inputs(settings)]
    inputs.append((fluentbit.FORWARD, fluentbit.RECORDS))
    try:
        return [found for folder in sorted(storage.iterdir()) if (found := _of_folder(folder, inputs, now))]
    except OSError as error:
        raise InputError(
            f"{storage}: what waits can't be read ({error.strerror}); run this as the agent's user."
        ) from None


def _of_folder(folder: Path, inputs: Sequence[tuple[str, str]], now: float) -> Waiting | None:
    number = _FOLDER.fullmatch(folder.name)
    if number is None:
        return None
    chunks = [(int(match[1]), _size(file)) for file in folder.iterdir() if (match := _CHUNK.fullmatch(file.name))]
    if not chunks:
        return None
    # What an input of a former configuration has left is delivered all the same.
    known = int(number[1]) < len(inputs)
    name, tag = inputs[int(number[1])] if known else (folder.name, fluentbit.RECORDS)
    oldest = max(now - min(began for began, _ in chunks), 0)
    return Waiting(name, fluentbit.output_of(tag), len(chunks), sum(size for _, size in chunks), oldest)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # delivered meanwhile
        return 0
