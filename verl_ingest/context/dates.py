"""Give documents whose line had no time the time of their neighbours in the file.

Without one, a document carries the time of reading or the file's, which says nothing about when its step was.
"""

import base64
from collections.abc import Sequence

from verl_ingest.query.bodies import DATED
from verl_ingest.query.store import Document


def is_dated(document: Document) -> bool:
    """Tell whether the line itself had a time."""
    return document["time_source"] in DATED


def settled(documents: Sequence[Document]) -> list[Document]:
    """Return the documents of a step in order of time, those without one right after the line before them.

    At the beginning of a file the line after counts; a file without any time (verl's file logger) takes the last time
    of the step. Where no document has a time, nothing changes.
    """
    dated = [document["@timestamp"] for document in documents if is_dated(document)]
    if not dated or len(dated) == len(documents):
        return list(documents)
    last = max(dated)
    files: dict[bytes, list[tuple[bytes, Document]]] = {}
    for document in documents:
        place = base64.urlsafe_b64decode(document["event_id"])
        files.setdefault(place[:6], []).append((place, document))
    found = []
    for lines in files.values():
        lines.sort(key=lambda line: line[0])
        time = next((document["@timestamp"] for _, document in lines if is_dated(document)), last)
        for place, document in lines:
            time = document["@timestamp"] if is_dated(document) else time
            found.append((time, place, document | {"@timestamp": time}))
    return [document for _, _, document in sorted(found, key=lambda entry: entry[:2])]
