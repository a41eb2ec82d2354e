import pytest

from tests.documents import START, line, record
from verl_ingest.catalog import metrics
from verl_ingest.context import names, onset, why
from verl_ingest.errors import InputError, NotFound

CATALOGUE = metrics.load()


def steps_of(run: str, steps: range, *, begin: float = 0, pid: int = 1):
    return [
        record(run, begin + 10 * step, step=step, rank=0, stage="actor", pid=pid, metrics={"loss": 1.0 + step % 3})
        for step in steps
    ]


@pytest.fixture
def find(store):
    def find_step(run_id: str, text: str) -> int:
        with store.open(run_id) as run:
            return names.find_step(run, text, catalogue=CATALOGUE, now=START + 10**12, window=50)

    return find_step


def test_a_run_is_found_by_its_name_or_the_only_beginning(store, write):
    write(record(run, 0, step=1) for run in ("grpo-a", "grpo-ab", "grpo-b"))
    assert names.find_run(store, "grpo-a") == "grpo-a"
    assert names.find_run(store, "grpo-ab") == "grpo-ab"
    assert names.find_run(store, "grpo-b") == "grpo-b"
    with pytest.raises(InputError, match=r"'grpo-' is the beginning of 3 runs: grpo-a, grpo-ab, grpo-b; write more"):
        names.find_run(store, "grpo-")
    with pytest.raises(NotFound, match=r"There is no run 'grp0-ab'; did you mean grpo-ab"):
        names.find_run(store, "grp0-ab")
    with pytest.raises(NotFound, match=r"There is no run '\*'; there are "):
        names.find_run(store, "*")


def test_the_last_run_is_the_one_that_logged_last(store, write):
    write([record("far-ahead", 30 * 365 * 86_400, step=1)])
    with names.open_run(store, "@last") as run:
        assert run.run_id == "far-ahead"


def test_steps_are_counted_from_the_end(find, write):
    write(steps_of("counted", range(1, 10)))
    assert [find("counted", text) for text in ("7", "last", "-1", "-3")] == [7, 9, 9, 7]
    with pytest.raises(NotFound, match="has only 9 steps"):
        find("counted", "-10")


def test_the_last_step_is_that_of_the_attempt_that_runs_now(find, write):
    write([*steps_of("resumed", range(1, 10)), *steps_of("resumed", range(5, 8), begin=500, pid=2)])
    assert (find("resumed", "last"), find("resumed", "-2")) == (7, 6)


def test_a_line_after_the_last_step_is_no_step(find, write):
    late = record("late", 200, step=10, stage="rollout", metrics={"tokens": 1.0}) | {"step_source": "stream"}
    write([*steps_of("late", range(1, 10)), late])
    assert find("late", "last") == 9


def test_a_step_that_ended_in_an_error_is_the_last_one_and_the_first_bad_one(find, write):
    write([*steps_of("crashed", range(1, 13)), line("crashed", 200, "boom", step=13, level="error")])
    assert find("crashed", "last") == 13
    assert find("crashed", "-2") == 12
    assert find("crashed", "first-bad") == 13
    write([*steps_of("crashed", range(9, 15), begin=500, pid=2), line("crashed", 700, "boom", step=15, level="error")])
    assert find("crashed", "last") == 15


def test_a_time_means_the_step_of_that_time(find, write):
    write(steps_of("timed", range(1, 10)))
    assert find("timed", "2026-05-28T20:27:25Z") == 4  # 45 s after START


def test_what_is_no_step_is_refused(find, write):
    write([*steps_of("refused", range(1, 3)), line("stepless", 0, "hello")])
    for text in ("first", "1.5", "-0", "", "--1"):
        with pytest.raises(InputError, match="is not a step; write a number, last"):
            find("refused", text)
    for text in (str(2**53 + 1), "9" * 5_000):
        with pytest.raises(InputError, match="is too large; steps are at most 9007199254740992"):
            find("refused", text)
    with pytest.raises(NotFound, match="has only 0 steps"):
        find("stepless", "last")


def test_the_first_bad_step(find, write, demo):
    assert find(demo, "first-bad") == 156
    write(steps_of("good", range(1, 130)))
    with pytest.raises(NotFound, match="No step of run 'good' is abnormal"):
        find("good", "first-bad")


def test_the_first_bad_step_is_where_why_says_the_trouble_began(store, find, demo):
    with store.open(demo) as run:
        told = why.explain(run, catalogue=CATALOGUE, now=START + 10**12)
    assert told.entry()["began"]["step"] == find(demo, "first-bad")
    assert told.episodes[0].first < told.first_bad


def test_the_first_bad_step_before_all_that_why_looks_at(find, write):
    high = [record("early", 10 * step, step=step, rank=0, stage="actor", metrics={"loss": 9e9}) for step in (60,)]
    write([*(each for each in steps_of("early", range(1, 700)) if each["step"] != 60), *high])
    assert find("early", "first-bad") == 60


def test_no_abnormal_step_is_overlooked(store, demo):
    """Every planted fault of the demo is among the steps that are looked at closely."""
    with store.open(demo) as run:
        found = onset.suspects(run, list(range(1, 101)), catalogue=CATALOGUE, window=50)
        found += onset.suspects(run, list(range(101, 201)), catalogue=CATALOGUE, window=50)
    planted = {61, 88, 128, 137, *range(160, 166), *range(170, 181), *range(190, 194)}
    assert planted <= set(found)
    assert len(found) < 120
