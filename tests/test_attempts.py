import pytest

from tests.documents import START, record
from verl_ingest.context import attempts
from verl_ingest.context.attempts import Attempt
from verl_ingest.query.store import Launch, Segment


def launch(pid: int | None, steps: tuple[int, int], times: tuple[int, int], attempt: str | None = None) -> Launch:
    return Launch(attempt, "node-1", pid, *steps, *times)


def summary(found: list[Attempt]) -> list[tuple[int, int, int]]:
    return [(attempt.number, attempt.first_step, attempt.last_step) for attempt in found]


def test_one_process_is_one_attempt():
    assert summary(attempts.from_launches([launch(1, (1, 9), (0, 90))])) == [(1, 1, 9)]


def test_a_new_process_at_a_lower_step_is_a_new_attempt():
    found = attempts.from_launches([launch(1, (1, 205), (0, 2050)), launch(2, (200, 240), (2400, 2800))])
    assert summary(found) == [(1, 1, 205), (2, 200, 240)]


def test_a_new_process_at_the_same_step_is_a_new_attempt():
    found = attempts.from_launches([launch(1, (1, 5), (0, 50)), launch(2, (5, 9), (60, 90))])
    assert summary(found) == [(1, 1, 5), (2, 5, 9)]


def test_a_new_process_at_the_next_step_goes_on_with_the_attempt():
    found = attempts.from_launches([launch(1, (1, 5), (0, 50)), launch(2, (6, 9), (60, 90))])
    assert summary(found) == [(1, 1, 9)]


def test_processes_side_by_side_are_one_attempt():
    found = attempts.from_launches([launch(1, (1, 9), (0, 90)), launch(2, (1, 9), (3, 93))])
    assert summary(found) == [(1, 1, 9)]


def test_a_fall_within_one_process_id_needs_no_new_one():
    """Every launch of a container has process 1."""
    found = attempts.from_track([(0, 1), (10, 2), (10, 2), (20, 3), (90, 2), (95, 3), (99, 3)])
    assert summary(found) == [(1, 1, 3), (2, 2, 3)]
    assert found[1].begin == 90


def test_launch_ids_say_it_themselves():
    found = attempts.from_launches(
        [launch(7, (6, 9), (60, 90), "b"), launch(7, (1, 5), (0, 50), "a"), launch(8, (1, 5), (1, 51), "a")]
    )
    assert [(attempt.launch, attempt.first_step, attempt.begin) for attempt in found] == [("a", 1, 0), ("b", 6, 60)]


def test_a_document_belongs_to_the_attempt_of_its_time_or_of_its_launch_id():
    known = [Attempt(1, "a", 1, 9, START, START + 90_000), Attempt(2, "b", 5, 9, START + 100_000, START + 190_000)]
    assert attempts.number_of(record("r", 99.999, step=9), known) == 1
    assert attempts.number_of(record("r", 100, step=5), known) == 2
    assert attempts.number_of(record("r", 150, step=9, attempt="a"), known) == 1
    assert attempts.number_of(record("r", 150, step=9, attempt="stranger"), known) == 2
    assert attempts.number_of(record("r", 150, step=9), []) == 1


KNOWN = [
    Attempt(1, None, 1, 205, 0, 2050),
    Attempt(2, None, 200, 220, 2400, 2600),
    Attempt(3, None, 210, 240, 3000, 3300),
]


@pytest.mark.parametrize(
    ("number", "first", "last", "expected"),
    [
        (3, 190, 230, [Segment(190, 199, None, 2400), Segment(200, 209, 2400, 3000), Segment(210, 230, 3000, None)]),
        (1, 190, 204, [Segment(190, 204, None, 2400)]),
        (2, 195, 201, [Segment(195, 199, None, 2400), Segment(200, 201, 2400, 3000)]),
        (3, 100, 150, [Segment(100, 150, None, 2400)]),
        (3, 9, 8, []),
    ],
)
def test_segments_take_each_step_from_the_newest_attempt_up_to_the_given_one(number, first, last, expected):
    assert attempts.segments(KNOWN, number, first, last) == expected


def two_attempts(run: str, *, pids: tuple[int, int] | None = (10, 20), launches: tuple[str, str] | None = None):
    """Three ranks; the first attempt ends in step 6, the second begins at 4; rank 2's clock is 2 s ahead."""
    for number, (steps, begin) in enumerate([(range(1, 7), 0), (range(4, 9), 500)]):
        for place, step in enumerate(steps):
            for rank in range(3):
                for at, stage in enumerate(("rollout", "actor")):
                    yield record(
                        run,
                        begin + 10 * place + 5 * at + (2 if rank == 2 else 0),
                        step=step,
                        rank=rank,
                        stage=stage,
                        host=f"node-{rank}",
                        pid=pids[number] + rank if pids else None,
                        attempt=launches[number] if launches else None,
                        metrics={"loss": 1.0 + number},
                    )


@pytest.mark.parametrize(
    "how", [{}, {"pids": None}, {"launches": ("first", "second")}, {"pids": None, "launches": ("a", "b")}]
)
def test_the_store_tells_attempts_apart(store, write, how):
    run = "attempts-" + "-".join(how)
    write(two_attempts(run, **how))
    with store.open(run) as reader:
        documents = reader.records(5)
        known = attempts.find(reader, documents)
        parts = attempts.part(documents, known)
    assert summary(known) == [(1, 1, 6), (2, 4, 8)]
    assert {number: {document["metrics"]["loss"] for document in part} for number, part in parts.items()} == {
        1: {1.0},
        2: {2.0},
    }
    assert len(parts[1]) == len(parts[2]) == 6


def test_an_attempt_begins_with_the_quickest_rank_not_with_the_watched_one(store, write):
    run = "attempts-quickest"
    late = [record(run, 499, step=4, rank=1, stage="rollout", pid=21, metrics={"loss": 2.0})]
    write([*two_attempts(run), *late])
    with store.open(run) as reader:
        known = attempts.find(reader, reader.records(6))
    assert known[1].begin == START + 499_000


def test_the_demo_was_resumed(store, demo):
    with store.open(demo) as reader:
        known = attempts.find(reader, reader.records(201))
    assert summary(known) == [(1, 1, 205), (2, 200, 240)]


def test_one_process_in_two_files_without_times_is_one_attempt(store, write):
    """The console and Ray's own file of a driver; the times of each are estimated by itself."""
    write(
        record(
            "two-files", step + shift, step=step, stage="trainer", pid=9, time_source="estimated", metrics={"loss": 1.0}
        )
        for shift in (0, 7.5)
        for step in range(1, 21)
    )
    with store.open("two-files") as run:
        assert summary(attempts.find(run, run.records(20))) == [(1, 1, 20)]
