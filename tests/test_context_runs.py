import pytest

from tests.documents import START, line, record
from verl_ingest.catalog import metrics
from verl_ingest.context import exits, runs, setup
from verl_ingest.context.setup import Setup
from verl_ingest.query.store import Mark, RunRow

MINUTE, DAY = 60_000, 86_400_000
LAST = Mark(START + 990_000, dated=True, step=100)


def event(name: str, **fields):
    return record("r", 1, kind="event", event=name, **fields)


PACE = [10.0] * 45 + [50.0] * 5  # the 95th percentile is 50 s


def run(silence: int, *, error: Mark | None = None, step: Mark | None = LAST, pace=PACE, total: int | None = 300):
    """A run of 1,000 s that reached step 100, silent for so many milliseconds since."""
    row = RunRow("r", 1, START, START + 1_000_000, step, error)
    return runs.Run(row, Setup(total_steps=total), pace, {}, now=START + 1_000_000 + silence)


@pytest.mark.parametrize(
    ("silence", "error", "expected"),
    [
        (0, None, "running"),
        (150_000, None, "running"),
        (150_001, None, "stalled"),
        (DAY - 1, None, "stalled"),
        (DAY, None, "ended"),
        (0, Mark(START + 991_000, True, 101), "running"),
        (DAY, Mark(START + 991_000, True, 101), "crashed"),
        (DAY, Mark(START + 989_000, True, 101), "ended"),  # an earlier attempt's, or the step is there after all
        (DAY, Mark(START, False, 101), "crashed"),  # its time is that of the file
        (DAY, Mark(START + 999_000, False, 100), "ended"),
        (DAY, Mark(START + 999_000, False, None), "ended"),
    ],
)
def test_the_state_of_a_run(silence, error, expected):
    assert run(silence, error=error).state == expected


def test_a_run_that_reached_its_last_step_is_finished():
    assert run(DAY, total=100, error=Mark(START + 999_000, True, 101)).state == "finished"
    assert run(0, total=101).state == "running"
    assert run(0, total=None).state == "running"


def test_a_run_without_steps_has_crashed_when_it_had_an_error():
    assert run(MINUTE, step=None).state == "running"
    assert run(DAY, step=None, error=Mark(START, False, None)).state == "crashed"
    assert run(DAY, step=None).state == "ended"


@pytest.mark.parametrize(("pace", "patience"), [([1.0] * 50, 10), ([20.0] * 50, 60), ([], 60), ([1.0] * 9, 60)])
def test_patience_is_three_steps_time(pace, patience):
    assert run(patience * 1_000, pace=pace).state == "running"
    assert run(patience * 1_000 + 1, pace=pace).state == "stalled"


def read_until(seconds_ago: int | None, *, error: Mark | None = None, ahead: int = -1_200):
    """A run at step 24 whose console's newest time lies `ahead` s of now; an agent read metrics until `seconds_ago`."""
    now = START + DAY
    read = None if seconds_ago is None else (now - 10**6, now - 1_000 * seconds_ago)
    row = RunRow("r", 1, now + 1_000 * ahead, now + 1_000 * ahead, Mark(now, dated=False, step=24), error, read)
    return runs.Run(row, Setup(), [1.0] * 24, {}, now)


@pytest.mark.parametrize(
    ("read", "state", "age"),
    [(10, "running", 10), (11, "stalled", 1_200), (None, "stalled", 1_200)],
)
def test_records_that_still_arrive_show_that_a_run_lives_whatever_its_lines_say(read, state, age):
    assert (read_until(read).state, read_until(read).age_s) == (state, age)


def test_patience_with_a_young_run_goes_by_when_its_records_arrived():
    row = RunRow("r", 1, START, START, Mark(START, False, 2), None, (START, START + 400_000))
    assert runs.patience(row, []) == 600


@pytest.mark.parametrize(
    ("read", "error", "state", "heard"),
    [
        (5, None, "running", "5.0 s ago"),
        (300, None, "stalled", "5 min ago"),
        (None, None, "unknown", "not known"),
        (None, Mark(START, True, 25), "crashed", "not known"),
        (300, Mark(START, True, 25), "crashed", "5 min ago"),
    ],
)
def test_times_in_the_future_tell_nothing_but_to_set_the_timezone(read, error, state, heard):
    found = read_until(read, error=error, ahead=27_078)
    assert (found.state, found.heard) == (state, heard)
    assert found.note == "times lie 7 h 31 min in the future; set timezone"
    assert found.entry()["age_s"] == (None if read is None else read)
    assert heard.removesuffix(" ago") in (said := exits.tell(found, []).sentence) or found.note in said


def test_clocks_may_differ_a_little():
    assert (read_until(None, ahead=60).state, read_until(None, ahead=60).age_s) == ("running", 0)
    assert read_until(None, ahead=60).note is None


def test_the_time_to_go_is_told_only_where_it_is_known():
    assert run(4_000).eta_s == 200 * 10 - 4
    assert run(0, total=None).eta_s is None
    assert run(0, pace=PACE[:9]).eta_s is None
    assert run(DAY).eta_s is None
    assert run(0, total=100).eta_s is None


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([], Setup()),
        ([event("config", extra={"world_size": 16, "config": {"trainer.total_training_steps": 300}})], Setup(300, 16)),
        ([event("config", extra={"world_size": "x", "config": []})], Setup()),
        ([line("r", 0, "Total steps: 250, num_warmup_steps: 0"), event("config", extra={"config": {}})], Setup(250)),
        ([line("r", 0, "Total steps: -1, num_warmup_steps: 0"), line("r", 1, "No Total steps: 5")], Setup()),
        (
            [event("tracker", extra={"url": "https://a"}), event("tracker", extra={"url": "https://b"})],
            Setup(tracker="https://b"),
        ),
        ([line("r", 0, "Total steps: 250"), line("r", 9, "Total steps: 400")], Setup(400)),
    ],
)
def test_what_a_run_said_of_its_setup(documents, expected):
    assert setup.read(documents) == expected


def test_the_newest_runs_with_their_golden_six(store, write):
    write(
        [
            record("older", 10, step=3, rank=0, metrics={"actor/kl_loss": 0.02, "kl_divergence": 0.01}),
            record("older", 10, step=3, rank=1, metrics={"kl_divergence": 0.03}),
            record("newer", 10**9, step=7, rank=0, metrics={"Reward": 0.5, "unknown": 1.0}),
            line("stepless", 2 * 10**9, "hello"),
        ]
    )
    found = runs.newest(store, catalogue=metrics.load(), now=START + 3 * 10**12, most=10_000)
    mine = {run.row.run_id: run for run in found if run.row.run_id in ("older", "newer", "stepless")}
    assert list(mine) == ["stepless", "newer", "older"]
    assert mine["older"].golden == {"kl_ref": 0.02}
    assert mine["newer"].golden == {"reward_mean": 0.5}
    assert mine["stepless"].golden == {}
    assert mine["newer"].entry() == {
        "run_id": "newer", "state": "ended", "abnormal": None, "abnormal_since": None, "pinned": False,
        "step": 7, "total": None, "eta_s": None,
        "age_s": 2 * 10**9, "note": None, "first": "2058-02-03T22:13:20.000Z", "last": "2058-02-03T22:13:20.000Z",
        "records": 1, "world_size": None, "tracker": None, "golden": {"reward_mean": 0.5},
    }  # fmt: skip


def test_golden_values_are_those_of_the_attempt_that_runs_now(store, write, demo):
    found = {run.row.run_id: run for run in runs.newest(store, catalogue=metrics.load(), now=START, most=10_000)}
    assert found[demo].step == 240
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
    found = runs.newest(store, catalogue=metrics.load(), now=START, most=10_000)
    assert [run.golden for run in found if run.row.run_id == "again"] == [{"kl_ref": 1.0}]


@pytest.mark.parametrize(("source", "state", "age"), [("read", "running", 1), ("estimated", "stalled", 1_200)])
def test_only_what_an_agent_read_shows_that_a_run_lives(store, write, source, state, age):
    """A file of the same age that was loaded does not: its times are a guess."""
    run_id = f"followed-{source}"
    steps = [
        record(run_id, 1_199 + step, step=step, metrics={"loss": 1.0}) | {"time_source": source}
        for step in range(-23, 1)
    ]
    write([line(run_id, 0, "dated"), *steps])
    found = runs.newest(store, catalogue=metrics.load(), now=START + 1_200_000, most=10_000)
    [run] = [run for run in found if run.row.run_id == run_id]
    assert (run.state, run.age_s) == (state, age)
    with store.open(run_id) as opened:
        assert opened.row() == run.row
