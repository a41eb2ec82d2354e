"""An audit of a healthy run against the load of it."""

import statistics
from collections.abc import Sequence

from elasticsearch import Elasticsearch

from bench import server
from verl_ingest.audit import pipeline as auditing
from verl_ingest.audit.store import ElasticStore
from verl_ingest.load import pipeline as loading
from verl_ingest.load.files import LogFile
from verl_ingest.settings import Settings

ROUNDS = 3


def measure(client: Elasticsearch, logs: Sequence[LogFile], settings: Settings) -> dict[str, float]:
    """Return the audit's time over the load's (1 is as slow as a load), median of ROUNDS rounds each."""
    loaded, audited = [], []
    for _ in range(ROUNDS):
        server.empty(client)
        summary = loading.load(logs, client, settings)
        report = auditing.audit(logs, ElasticStore(client), settings)
        if report.missing or report.numbers()["indexed"] != summary.created:
            raise RuntimeError(f"the audit found {report.missing} of {summary.lines} lines missing")
        loaded.append(summary.seconds)
        audited.append(report.seconds)
    load_s, audit_s = statistics.median(loaded), statistics.median(audited)
    return {"lines": summary.lines, "load_s": load_s, "audit_s": audit_s, "ratio": audit_s / load_s}
