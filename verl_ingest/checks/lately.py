"""The newest runs: hosts that have fallen silent, ranks that are missing, clocks that differ, ranks that never log."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from elasticsearch import Elasticsearch

from verl_ingest.checks.check import Check
from verl_ingest.checks.day import Day, OfRun
from verl_ingest.context import hosts, runs, setup, stages
from verl_ingest.context.words import counted, duration, ranks, several
from verl_ingest.index.mappings import RECORDS_PATTERN
from verl_ingest.query import bodies, history
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.store import Mark, RunRow, Segment
from verl_ingest.query.times import milliseconds

RUNS = 3  # each is a few searches over its last steps
SILENT_MS = 300_000  # less is a slow step, an upload, an agent that was restarted
SKEW_S = 1.0  # from here on the order of first errors may be wrong in spite of the correction


@dataclass(frozen=True)
class Lately:
    """A run as it is: how long it may well be silent, and the step before its newest one, None where there is none.

    `missing` are the ranks that a stage of that step lacks, `skew` is how many seconds a host's clock is ahead.
    """

    of: OfRun
    is_running: bool
    patience_ms: float
    world_size: int | None
    step: int | None
    missing: Mapping[str, Sequence[int]]
    skew: Mapping[str, float]


def check(day: Day, now: int, server: Elasticsearch) -> Iterator[Check]:
    """Yield a check on each matter of the newest runs."""
    found = [_lately(run, server, now) for run in day.runs[:RUNS]]
    yield judge_silent(found)
    yield judge_missing(found)
    yield judge_clocks(found)
    yield judge_drivers(found)


def _lately(of: OfRun, server: Elasticsearch, now: int) -> Lately:
    """Look at the last steps alone: all of a run that is weeks long takes minutes."""
    store = ElasticStore(server)
    newest = _newest_step(of, server)
    pace = store.paces({of.run_id: newest}).get(of.run_id, []) if newest is not None else []
    mark = None if newest is None else Mark(round(of.last), dated=True, step=newest)
    row = RunRow(of.run_id, of.metrics, round(of.first), round(of.last), newest_step=mark, newest_error=None)
    patience_ms = 1_000 * runs.patience(row, pace)
    step = newest - 1 if newest else None
    missing, skew = {}, {}
    with store.open(of.run_id) as reader:
        world_size = setup.read(reader.setup()).world_size
        if step is not None:
            # The last attempt's: what an earlier one had in these steps is far longer ago.
            since = round(of.last - patience_ms * stages.RECENT)
            documents = [document for document in reader.records(step) if milliseconds(document) >= since]
            before = [Segment(max(step - stages.RECENT, 0), step - 1, since=since)]
            body = history.presence(of.run_id, before)
            answer = server.search(index=RECORDS_PATTERN, body=body, allow_partial_search_results=False)
            presence = history.read_presence(answer["aggregations"])
            missing, skew = stages.missing_ranks(documents, presence), hosts.clock_skew(documents, presence)
    return Lately(of, now - of.last <= patience_ms, patience_ms, world_size, step, missing, skew)


def _newest_step(of: OfRun, server: Elasticsearch) -> int | None:
    """Return the step of the newest metrics, which is not the largest one after a resume."""
    body = bodies.newest_record([bodies.of_run(of.run_id), bodies.METRIC, bodies.SAYS_STEP])
    found = server.search(index=RECORDS_PATTERN, body=body, allow_partial_search_results=False)
    hits = found["hits"]["hits"]
    return hits[0]["_source"]["step"] if hits else None


def judge_silent(found: Sequence[Lately]) -> Check:
    """Return the verdict on hosts of running runs whose newest record is much older than the run's."""
    running = [run for run in found if run.is_running]
    silent = [
        f"{host} ({run.of.run_id}) for {duration((run.of.last - last) / 1_000)}"
        for run in running
        for host, last in sorted(run.of.hosts.items(), key=lambda item: item[1])
        if run.of.last - last > max(SILENT_MS, run.patience_ms)
    ]
    if silent:
        return Check(
            "lag of hosts",
            "wrong",
            f"No record of {several(silent)}, while others of the run send.",
            "`verl-ingest lag` there says whether its agent is behind",
        )
    hosts = sum(len(run.of.hosts) for run in running)
    found_ = f"{counted(hosts, 'host')} of {counted(len(running), 'running run')} send." if running else "No run runs."
    return Check("lag of hosts", "fine", found_)


def judge_missing(found: Sequence[Lately]) -> Check:
    """Return the verdict on ranks that are silent, and on those that a stage of the last whole step lacks."""
    missing = []
    for run in found:
        silent = {rank for rank, last in run.of.ranks.items() if run.of.last - last > run.patience_ms}
        if silent:
            age = duration((run.of.last - max(run.of.ranks[rank] for rank in silent)) / 1_000)
            missing.append(f"{ranks(silent)} of {run.of.run_id} for {age}")
        for stage, numbers in run.missing.items():
            if rest := set(numbers) - silent:
                missing.append(f"{ranks(rest)} of {run.of.run_id} in {stage}, step {run.step}")
    if not missing:
        return Check("missing ranks", "fine", "No rank of the newest runs has stopped logging.")
    remedy = "`verl-ingest why RUN` says whether they died; if not, `verl-ingest lag` on their hosts"
    return Check("missing ranks", "watch", f"Missing: {several(missing)}.", remedy)


def judge_clocks(found: Sequence[Lately]) -> Check:
    """Return the verdict on hosts whose clock differs from the others' in their run."""
    skewed = {host: skew for run in found for host, skew in run.skew.items()}
    apart = [f"{host} {skew:+.2f} s" for host, skew in sorted(skewed.items(), key=lambda item: -abs(item[1]))]
    if any(abs(skew) >= SKEW_S for skew in skewed.values()):
        remedy = "let NTP or chrony set them; until then which rank failed first is not sure"
        return Check("clocks", "watch", f"They differ from the others': {several(apart)}.", remedy)
    return Check("clocks", "fine", f"They differ by less than {SKEW_S:g} s." + (f" {several(apart)}." if apart else ""))


def judge_drivers(found: Sequence[Lately]) -> Check:
    """Return the verdict on runs of which ranks log no metrics, or fewer ranks than there are."""
    alone = [run.of.run_id for run in found if run.of.metrics and not run.of.ranks]
    few = [
        f"{counted(len(run.of.ranks), 'rank')} of {run.world_size} ({run.of.run_id})"
        for run in found
        if run.of.ranks and run.world_size and len(run.of.ranks) < run.world_size
    ]
    remedy = "let every rank log (rank JSONL in paths.rank), or tail Ray's worker files (paths.ray, docs/agent.md)"
    if alone:
        found_ = f"Driver metrics only: {several(alone)}. Which rank drives a metric can't be told."
        return Check("metrics of ranks", "watch", found_, remedy)
    if few:
        return Check("metrics of ranks", "watch", f"Not every rank logs: {several(few)}.", remedy)
    return Check("metrics of ranks", "fine", "Ranks log metrics themselves.")
