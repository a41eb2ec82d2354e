import pytest

from tests.documents import START, line, record
from verl_ingest.catalog import metrics
from verl_ingest.context import runs
from verl_ingest.query.store import RunRow

pytest_plugins = ["tests.demo_store"]

MINUTE, DAY = 60_000, 86_400_000


def row(*, last_error: int | None = None, steps: int | None = 100) -> RunRow:
    """A run of 1,000 s, 10 s a step where it has steps."""
    return RunRow("r", 1, START, START + 1_000_000, steps, last_error)


@pytest.mark.parametrize(
    ("silence", "last_error", "expected"),
    [
        (0, None, "running"),
        (MINUTE, None, "running"),
        (MINUTE + 1, None, "stalled"),
        (DAY - 1, None, "stalled"),
        (DAY, None, "ended"),
        (0, START + 990_000, "running"),
        (DAY, START + 990_000, "crashed"),
        (DAY, START + 100_000, "ended"),
    ],
)
def test_the_state_of_a_run(silence, last_error, expected):
    assert runs.state(row(last_error=last_error), START + 1_000_000 + silence) == expected


def test_slow_steps_are_given_more_time():
    assert runs.state(row(steps=10), START + 1_000_000 + 5 * MINUTE) == "running"
    assert runs.state(row(steps=10), START + 1_000_000 + 5 * MINUTE + 1) == "stalled"
    assert runs.state(row(steps=None), START + 1_000_000 + 50 * MINUTE) == "running"


def test_the_newest_runs_with_their_golden_six(store, write):
    write(
        [
            record("older", 10, step=3, rank=0, metrics={"actor/kl_loss": 0.02, "kl_divergence": 0.01}),
            record("older", 10, step=3, rank=1, metrics={"kl_divergence": 0.03}),
            record("newer", 10**9, step=7, rank=0, metrics={"Reward": 0.5, "unknown": 1.0}),
            line("stepless", 2 * 10**9, "hello"),
        ]
    )
    found = runs.newest(store, catalogue=metrics.load(), now=START + 3 * 10**12, most=100)
    mine = {run.row.run_id: run for run in found if run.row.run_id in ("older", "newer", "stepless")}
    assert list(mine) == ["stepless", "newer", "older"]
    assert mine["older"].golden == {"kl_ref": 0.02}
    assert mine["newer"].golden == {"reward_mean": 0.5}
    assert mine["stepless"].golden == {}
    assert mine["newer"].entry() == {
        "run_id": "newer", "state": "ended", "step": 7, "total": None, "age_s": 2 * 10**9 - 10**3 * 10**3 + 10**6,
        "first": "2058-02-03T22:13:20.000Z", "last": "2058-02-03T22:13:20.000Z", "records": 1,
        "golden": {"reward_mean": 0.5},
    }  # fmt: skip


def test_golden_values_are_those_of_the_attempt_that_runs_now(store, write, demo):
    found = {run.row.run_id: run for run in runs.newest(store, catalogue=metrics.load(), now=START, most=100)}
    assert found[demo].row.last_step == 240
    assert list(found[demo].golden) == [
        "kl_ref",
        "entropy",
        "reward_mean",
        "advantage_mean",
        "advantage_std",
        "clip_fraction",
    ]
    first = [record("again", 10 * step, step=step, rank=0, metrics={"KL": 9.0}) for step in range(1, 51)]
    second = [record("again", 400 + 10 * step, step=step, rank=0, metrics={"KL": 1.0}) for step in range(40, 46)]
    write([*first, *second])
    found = runs.newest(store, catalogue=metrics.load(), now=START, most=100)
    assert [run.golden for run in found if run.row.run_id == "again"] == [{"kl_ref": 1.0}]
