"""`make bench`: measure loading, storage and queries on a local server; print ratios beside what is aimed at."""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import asking, auditing, catching_up, edge, loading, scale, server, serving, storage, summaries
from tests import fluentbit
from verl_ingest.demo import logs as sample
from verl_ingest.edge import trial
from verl_ingest.load import files
from verl_ingest.load.files import LogFile
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings

RUN = "bench"
LINES_A_STEP = 160  # of 8 ranks that log long lines
MOST_SUMMARISED = 125  # steps, of many ranks: 320,000 lines
SMALL_STEPS = 1_250  # 200,000 lines: for storage, and for agents

Row = tuple[str, float, str]  # what, measured, note

# What each ratio should be, and which way.
AIMS = {
    "load / raw _bulk": (">=", 0.7),
    "bytes a record": ("<=", 65),
    "bytes / default mapping": ("<=", 0.35),
    "step / bare searches, p95": ("<=", 2.0),
    "step as JSON / bare searches, p95": ("<=", 2.0),
    "audit / load": ("<=", 1.0),
    "baseline without / with summaries": (">=", 2.0),
    "step without / with summaries": (">=", 1.2),
    "first-bad's search without / with": (">=", 1.5),
    "summarising / load": ("<=", 1.0),
    "JSON parser / normaliser, rank": (">=", 0.5),
    "JSON parser / normaliser, console": (">=", 0.5),
    "catching up / delivering": (">=", 0.8),
    "step among many / alone": ("<=", 2.0),
    "run list among many / alone": ("<=", 4.0),
    "why among many / alone": ("<=", 2.0),
    "drill-down among many / alone": ("<=", 2.0),
    "step among many / its searches, p95": ("<=", 2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"what to measure, of {', '.join(PARTS)} (default: all but scale)")
    parser.add_argument("--lines", type=int, default=1_000_000, help="rank lines to load (default: %(default)s)")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    steps, parts = given.lines // LINES_A_STEP, given.parts or [part for part in PARTS if part != LONG]
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for part in parts for row in PARTS[part](Path(folder), steps)]
    _show(rows)


def _server(folder: Path, steps: int) -> Iterator[Row]:
    settings = Settings.model_construct()
    with server.prepared(settings) as client:
        small = _logs(folder / "small", min(steps, SMALL_STEPS), settings)
        stored = storage.measure(client, small, settings)
        yield "bytes a record", stored["kit_bytes"], f"{stored['lines']:,.0f} rank lines, one segment"
        yield "bytes / default mapping", stored["ratio"], f"the default mapping takes {stored['default_bytes']:.0f}"
        big = _logs(folder / "big", steps, settings)
        loaded = loading.measure(client, big, settings)
        note = f"{loaded['lines']:,.0f} rank lines, median of {loading.ROUNDS}"
        yield "load / raw _bulk", loaded["ratio"], note
        client.indices.refresh(index="verl-*")
        asked = asking.measure(client, RUN, last_step=steps)
        note = f"{asked['requests']:.0f} requests; median {asked['ratio']:.2f}"
        yield "step / bare searches, p95", asked["p95_ratio"], note
        served = serving.measure(client, RUN, last_step=steps)
        note = f"{served['requests']:.0f} requests; median {served['ratio']:.2f}"
        yield "step as JSON / bare searches, p95", served["p95_ratio"], note


def _edge(folder: Path, steps: int) -> Iterator[Row]:
    binary = trial.find(os.environ)
    if binary is None:
        print(f"edge: {fluentbit.MISSING}")
        return
    place = folder / "agent"
    place.mkdir()
    sample.write(folder / "rank" / "bench", steps=steps, long_only=True)
    sample.write(folder / "console" / "bench", steps=steps * 4, ranks=1)
    for name, run, pattern in (("rank", "rank", "*.jsonl"), ("console", "console", "console.log")):
        found = edge.measure(binary, folder / run / "bench", place, pattern=pattern)
        note = f"{found['lines']:,.0f} {name} lines; {found['kit']:.1f} against {found['parser']:.1f} CPU s a million"
        yield f"JSON parser / normaliser, {name}", found["ratio"], note


def _audit(folder: Path, steps: int) -> Iterator[Row]:
    settings = Settings.model_construct()
    with server.prepared(settings) as client:
        found = auditing.measure(client, _logs(folder / "audited", steps, settings), settings)
    note = f"{found['lines']:,.0f} rank lines; {found['lines'] / found['audit_s']:,.0f} lines/s"
    yield "audit / load", found["ratio"], note


def _summaries(folder: Path, steps: int) -> Iterator[Row]:
    settings = Settings.model_construct()
    steps = min(steps, MOST_SUMMARISED)
    with server.prepared(settings) as client:
        logs = _logs(folder / "summarised", steps, settings, ranks=summaries.RANKS)
        found = summaries.measure(client, logs, settings, last_step=steps)
    note = f"{summaries.RANKS} ranks, {found['lines']:,.0f} rank lines"
    yield "baseline without / with summaries", found["baseline"], note
    yield "step without / with summaries", found["context"], note
    yield "first-bad's search without / with", found["suspects"], note
    yield "summarising / load", found["making"], f"a second time {found['again']:.3f}"


def _catching_up(folder: Path, steps: int) -> Iterator[Row]:
    binary = trial.find(os.environ)
    if binary is None:
        print(f"catching-up: {fluentbit.MISSING}")
        return
    settings = Settings.model_construct()
    runs = folder / "caught-up"
    lines = sum(log.path.read_bytes().count(b"\n") for log in _logs(runs / RUN, min(steps, SMALL_STEPS), settings))
    with server.prepared(settings) as client:
        found = catching_up.measure(client, binary, runs, folder / "agents", lines=lines)
    waited = f"{found['chunks']:.0f} chunks and {found['unread']:,.0f} unread lines after {catching_up.OUTAGE_S} s"
    note = f"{lines:,} rank lines, {found['lines_a_second']:,.0f}/s without an outage; {waited}"
    yield "catching up / delivering", found["ratio"], note


def _scale(folder: Path, steps: int) -> Iterator[Row]:
    settings = Settings.model_construct()
    with server.prepared(settings) as client:
        alone, many = scale.measure(client, folder / "many", settings, records=steps * LINES_A_STEP)
    among = f"{many.records:,} records of {many.runs} runs against {alone.records:,}"
    for name, asked in many.seconds.items():
        once = alone.seconds[name]
        note = f"p95 {asked.p95 / once.p95:.2f}; {1_000 * asked.median:.0f} against {1_000 * once.median:.0f} ms"
        yield f"{name} among many / alone", asked.median / once.median, note
    yield "step among many / its searches, p95", many.step_ratio, f"{among}; alone {alone.step_ratio:.2f}"


LONG = "scale"  # measured only where it is named
PARTS = {
    "server": _server,
    "edge": _edge,
    "audit": _audit,
    "summaries": _summaries,
    "catching-up": _catching_up,
    LONG: _scale,
}


def _logs(folder: Path, steps: int, settings: Settings, *, ranks: int = 8) -> Sequence[LogFile]:
    sample.write(folder, steps=steps, ranks=ranks, long_only=True)
    (folder / "console.log").unlink()
    return files.discover([folder], Normaliser(settings), run=RUN).logs


def _show(rows: Sequence[Row]) -> None:
    table = Table("measured", "is", "aimed at", "")
    for name, value, note in rows:
        sign, aim = AIMS[name]
        met = value >= aim if sign == ">=" else value <= aim
        table.add_row(name, f"{value:.2f}", f"{sign} {aim:g}", f"{'' if met else 'MISSED  '}{note}")
    Console().print(table)


if __name__ == "__main__":
    main()
