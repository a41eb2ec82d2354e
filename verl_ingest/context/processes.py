"""Which rank a line without one belongs to: its process is known from records that carry both, of any time.

A worker's process id is its rank's for as long as it lives. Ids come again: on other hosts (a console line may not name
its host), and after a restart. A line whose id fits two ranks of the same time keeps none.
"""

import re
from collections.abc import Iterable, Sequence

from verl_ingest.query.store import Document, Process, RunReader
from verl_ingest.query.times import milliseconds

# Ray sends a worker's exception to its caller, which prints it: the innermost process is the one that failed.
_REMOTE = re.compile(r"ray::[^\n]*?\(pid=(\d+), ip=")


def with_ranks(run: RunReader, documents: Sequence[Document]) -> list[Document]:
    """Return the documents, lines without a rank with that of their process, where it is known."""
    pids = {pid for document in documents if (pid := _lacking(document)) is not None}
    if not pids:
        return list(documents)
    known: dict[int, list[Process]] = {}
    for process in run.processes(pids=pids):
        known.setdefault(process.pid, []).append(process)
    found = []
    for document in documents:
        rank = rank_of(document, known.get(_lacking(document), ()))
        found.append(document if rank is None else document | {"rank": rank})
    return found


def rank_of(document: Document, processes: Iterable[Process]) -> int | None:
    """Return the rank that the processes with the document's process id agree on, else those alive at its time."""
    time = milliseconds(document)
    host = document.get("host.name") if origin(document) == document.get("process.pid") else None
    fitting = [process for process in processes if host is None or process.host in (None, host)]
    ranks = {process.rank for process in fitting}
    if len(ranks) > 1:
        ranks = {process.rank for process in fitting if process.first <= time <= process.last}
    return ranks.pop() if len(ranks) == 1 else None


def origin(document: Document) -> int | None:
    """Return the process that a line is about: where its exception came from, else who wrote it."""
    remote = _REMOTE.findall(document.get("error.stack_trace", ""))
    return int(remote[-1]) if remote else document.get("process.pid")


def _lacking(document: Document) -> int | None:
    """Return the process of a line that lacks its rank; metrics stay as they are."""
    return origin(document) if document["kind"] != "metric" and "rank" not in document else None
