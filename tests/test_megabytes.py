"""Lines of megabytes: each costs no more than its length, and none stops the real agent."""

import itertools
import time
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch

from tests import fluentbit
from tests.waiting import wait_for
from verl_ingest.load import files, pipeline
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.normalise.lua_settings import LINE_BYTES
from verl_ingest.settings import Settings

READ = Fallback(1_772_380_800_000_000_000, "read")
BYTES = 100_000
LONGEST_S = 0.3  # of the processor; a line takes some 0.01 s, one whose every byte looks back at all before it minutes
BEGINNINGS = [
    *(b"", b"step:1 - a:1 - ", b"[INFO] [a/b.py:1] ", b"{'actor': {'x': ", b"[prompt] ", b"Loss breakdown: "),
    *(b"Traceback (most recent call last):", b"Error executing job with overrides: [", b"\x1b[36m(", b"[", b"(a"),
    *(b'{"a": "', b'{"a": ', b'{"step": 1, ', b"PPO Step 1 | "),
]
REPEATED = [
    *(
        b"-",
        b"1",
        b"1.",
        b" ",
        b"(",
        b"[",
        b"{",
        b'"',
        b"'",
        b":",
        b"a:1 - ",
        b" - ",
        b"a - ",
        b"a=1, ",
        b"| ",
        b"a | ",
    ),
    *(
        b"%|",
        b"1%|",
        b"/s]",
        b"\r",
        b"\x1b",
        b"\x1b[",
        b"\\",
        b'"a":',
        b'{"a":',
        b"\xff",
        b"\xe4\xb8\xad",
        b"np.",
        b"a:",
    ),
    *(
        b"a | ",
        b"a:",
        b"nan ",
        b"[rank1]: ",
        b"(a pid=1) ",
        b"[repeated 1x",
        b"a took 1s",
        b"a.b.",
        b"Error: ",
        b"/a",
        b"=+",
    ),
]


def test_no_line_costs_more_than_its_length(tmp_path: Path) -> None:
    normaliser, slow = Normaliser(Settings(timezone="Etc/UTC")), []
    for number, (begin, unit) in enumerate(itertools.product(BEGINNINGS, REPEATED)):
        for name in ("console.log", "rank0.jsonl") if begin[:1] == b"{" else ("console.log",):
            file = normaliser.open(tmp_path / f"{number}-{name}", run_id="r1", relative=name)
            started = time.process_time()
            normaliser.block(file, begin + unit * (BYTES // len(unit)) + b":1\n", offset=0, fallback=READ)
            if time.process_time() - started > LONGEST_S:
                slow.append((name, begin, unit))
    assert slow == []


@pytest.mark.usefixtures("templated")
def test_the_agent_reads_on_behind_lines_of_megabytes(
    fluent_bit: str, elasticsearch: Elasticsearch, elasticsearch_url: str, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / f"megabytes-{time.time_ns()}"
    run.mkdir(parents=True)
    end = b'", "timestamp_ns": 1772380809350000000}'
    lines = [
        b'{"step": 1, "loss": 0.5, "text": "' + b"x" * 1_000_000 + end,
        b'{"step": 2, "loss": 0.5, "text": "' + b"y" * (LINE_BYTES + 1_000_000) + end,
        b'{"step": 3, "loss": 0.5, "text": "' + end,
    ]
    (run / "rank0.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (run / "console.log").write_bytes(b"z" * (2 * LINE_BYTES) + b"\nthe last line\n")
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)
    query = {"term": {"run_id": run.name}}

    def stored() -> dict[str, dict]:
        elasticsearch.indices.refresh(index="verl-*")
        hits = elasticsearch.search(index="verl-*", query=query, size=10)["hits"]["hits"]
        return {hit["_id"]: hit["_source"] for hit in hits}

    with fluentbit.running(fluent_bit, tmp_path, settings) as agent:
        found = wait_for(lambda: len(by_agent := stored()) >= 5 and by_agent, timeout=60, what="5 documents")
        assert agent.problems() == []
    flags = {
        (document["log.file.path"], document["log.offset"]): document["flags"]
        for document in found.values()
        if "flags" in document
    }
    assert flags == {
        ("rank0.jsonl", 0): ["truncated:message", "truncated:text"],
        ("rank0.jsonl", len(lines[0]) + 1): ["truncated:line", "truncated:message", "unparsed"],
        ("console.log", 0): ["truncated:line", "truncated:message"],
    }
    logs = files.discover([run], Normaliser(settings)).logs
    summary = pipeline.load(logs, elasticsearch, settings)
    assert (summary.lines, summary.existing, summary.created) == (5, 5, 0)
