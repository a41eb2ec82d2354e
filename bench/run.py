"""`make bench`: measure loading, storage and queries on a local server; print ratios beside what is aimed at."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import asking, loading, server, storage
from verl_ingest.demo import logs as sample
from verl_ingest.load import files
from verl_ingest.load.files import LogFile
from verl_ingest.normalise.lua import Normaliser
from verl_ingest.settings import Settings

RUN = "bench"
LINES_A_STEP = 160  # of 8 ranks that log long lines
STORAGE_STEPS = 1_250  # 200,000 lines

# What each ratio should be, and which way.
AIMS = {
    "load / raw _bulk": (">=", 0.7),
    "bytes a record": ("<=", 65),
    "bytes / default mapping": ("<=", 0.35),
    "step / bare searches, p95": ("<=", 2.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000, help="rank lines to load (default: %(default)s)")
    steps = parser.parse_args().lines // LINES_A_STEP
    settings = Settings()
    with tempfile.TemporaryDirectory() as folder, server.prepared(settings) as client:
        small = _logs(Path(folder, "small"), min(steps, STORAGE_STEPS), settings)
        stored = storage.measure(client, small, settings)
        big = _logs(Path(folder, "big"), steps, settings)
        loaded = loading.measure(client, big, settings)
        client.indices.refresh(index="verl-*")
        asked = asking.measure(client, RUN, last_step=steps)
    _show(
        [
            ("load / raw _bulk", loaded["ratio"], f"{loaded['lines']:,.0f} rank lines, median of {loading.ROUNDS}"),
            ("bytes a record", stored["kit_bytes"], f"{stored['lines']:,.0f} rank lines, one segment"),
            ("bytes / default mapping", stored["ratio"], f"the default mapping takes {stored['default_bytes']:.0f}"),
            (
                "step / bare searches, p95",
                asked["p95_ratio"],
                f"{asked['requests']:.0f} requests; median {asked['ratio']:.2f}",
            ),
        ]
    )


def _logs(folder: Path, steps: int, settings: Settings) -> Sequence[LogFile]:
    sample.write(folder, steps=steps, long_only=True)
    (folder / "console.log").unlink()
    return files.discover([folder], Normaliser(settings), run=RUN).logs


def _show(rows: Sequence[tuple[str, float, str]]) -> None:
    table = Table("measured", "is", "aimed at", "")
    for name, value, note in rows:
        sign, aim = AIMS[name]
        met = value >= aim if sign == ">=" else value <= aim
        table.add_row(name, f"{value:.2f}", f"{sign} {aim:g}", f"{'' if met else 'MISSED  '}{note}")
    Console().print(table)


if __name__ == "__main__":
    main()
