import base64

import pytest

from tests.documents import START, line, record
from verl_ingest.catalog import metrics
from verl_ingest.context import attempts, step
from verl_ingest.context.dates import settled

FILE_TIME = 100_000.0  # when the files were read, long after the run


def at(document: dict, file: bytes, offset: int, *, dated: bool) -> dict:
    """Put a document into a file at an offset."""
    identity = base64.urlsafe_b64encode(file + offset.to_bytes(5, "big") + b"\0" * 4).decode()
    return document | {"event_id": identity} | ({} if dated else {"time_source": "estimated"})


def test_a_line_without_a_time_belongs_right_after_the_line_before_it():
    documents = [
        at(line("r", 10, "a"), b"file-1", 0, dated=True),
        at(line("r", 20, "c"), b"file-1", 9, dated=True),
        at(line("r", 15, "other"), b"file-2", 5, dated=True),
        at(line("r", FILE_TIME, "b"), b"file-1", 5, dated=False),
        at(line("r", FILE_TIME, "first"), b"file-2", 1, dated=False),
        at(line("r", FILE_TIME, "loose"), b"file-3", 1, dated=False),
    ]
    assert [document["message"] for document in settled(documents)] == ["a", "b", "first", "other", "c", "loose"]


@pytest.mark.parametrize("dated", [True, False])
def test_where_all_or_none_have_a_time_nothing_changes(dated):
    documents = [at(line("r", n, str(n)), b"file-1", 9 - n, dated=dated) for n in range(3)]
    assert settled(documents) == documents


@pytest.fixture
def resumed(write) -> str:
    """Two attempts, 1 to 20 and 18 to 22; a console beside them has a line with a number and no time in each step."""
    documents = []
    for begin, steps, pid in ((0, range(1, 21), 1), (1_000, range(18, 23), 2)):
        for number in steps:
            documents += [
                record(
                    "undated",
                    begin + 10 * number,
                    step=number,
                    rank=rank,
                    stage="actor",
                    pid=pid,
                    metrics={"loss": 1.0 + number % 3},
                )
                for rank in (0, 1)
            ]
            offset = 100 * (number + begin)
            documents += [
                at(line("undated", begin + 10 * number, "said", step=number), b"consol", offset, dated=True),
                at(
                    record("undated", FILE_TIME, step=number, metrics={"tokens": 512.0}),
                    b"consol",
                    offset + 50,
                    dated=False,
                ),
            ]
    write(documents)
    return "undated"


@pytest.mark.parametrize(("number", "attempt"), [(15, 1), (19, 2)])
def test_lines_without_a_time_do_not_make_a_newer_attempt(store, resumed, number, attempt):
    with store.open(resumed) as run:
        context = step.assemble(run, number, catalogue=metrics.load(), now=START + 10**9, window=50)
    body = context.body
    assert (body["attempt"], [entry["attempt"] for entry in body["attempts"]]) == (attempt, list(range(1, attempt + 1)))
    assert {metric["name"] for metric in body["metrics"]} == {"loss", "tokens"}
    assert body["time"]["last"] == f"2026-05-28T20:{29 if attempt == 1 else 46}:{10 if attempt == 1 else 30}.000Z"
    assert [stage["duration_s"] for stage in body["stages"] if stage["stage"] == "trainer"] == [10.0]


def test_the_times_of_a_run_are_those_of_its_lines(store, resumed):
    with store.open(resumed) as run:
        assert run.last_time() == START + 1_220_000
        assert run.step_at(START + 1_199_000, {}) == 19
    [row] = [row for row in store.runs() if row.run_id == resumed]
    assert row.last == START + 1_220_000


def test_a_run_without_any_time_still_has_attempts(store, write):
    write(
        at(
            record("timeless", begin + number, step=number, stage="trainer", metrics={"loss": 1.0}),
            b"filelg", 10 * number + begin, dated=False,
        )
        for begin, steps in ((0, range(1, 9)), (1_000, range(5, 12)))
        for number in steps
    )  # fmt: skip
    with store.open("timeless") as run:
        known = attempts.find(run, settled(run.records(9)))
        assert run.step_at(START + 3_500, {}) == 3
        assert run.last_time() == START + 1_011_000
    assert [(attempt.first_step, attempt.last_step) for attempt in known] == [(1, 8), (5, 11)]
