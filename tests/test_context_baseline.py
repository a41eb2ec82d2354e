import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ingest.catalog import metrics as catalogue
from verl_ingest.context import baseline, metrics
from verl_ingest.context.pooling import Value
from verl_ingest.query.store import Key, Level


def test_usual_is_median_and_mad():
    usual = baseline.usual([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (usual.steps, usual.mean, usual.median, usual.mad) == (5, 22.0, 3.0, 1.0)
    assert usual.z(3.0 + 1.4826) == pytest.approx(1.0)


def test_no_history_is_nothing_to_judge_by():
    assert baseline.usual([]) is None


def test_where_most_of_the_history_is_one_number_the_mean_distance_counts():
    usual = baseline.usual([0.0] * 9 + [1.0])
    assert usual.mad == 0
    assert usual.sigma == pytest.approx(1.2533 * 0.1)


def test_a_value_that_never_changed_is_still_allowed_a_hundredth():
    usual = baseline.usual([1e-6] * 20)
    assert usual.z(1e-6) == 0
    assert usual.z(1.01e-6) == pytest.approx(1.0)


@pytest.mark.parametrize(("value", "z"), [(0.0, 0.0), (0.5, 999.0), (-0.5, -999.0)])
def test_z_is_bounded_where_the_history_is_all_zero(value, z):
    assert baseline.usual([0.0] * 20).z(value) == z


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60), st.floats(-1e9, 1e9))
def test_z_is_a_finite_number(history, value):
    assert abs(baseline.usual(history).z(value)) <= baseline.FAREST


def test_the_limit_grows_with_what_is_judged_and_falls_with_history():
    assert baseline.limit(19, 50) < baseline.limit(152, 50)
    assert baseline.limit(19, 100) < baseline.limit(19, 50) < baseline.limit(19, 10) == baseline.limit(19, 3)


@pytest.mark.parametrize("history", [10, 20, 50])
def test_healthy_steps_are_seldom_called_abnormal(history):
    """19 metrics on 8 ranks of pure noise: at most one step in twenty."""
    rng = random.Random(history)
    names = [f"unknown_{number}" for number in range(19)]
    keys = [Key(name, "actor", True) for name in names]
    false_alarms = 0
    for _ in range(150):
        common = [[rng.gauss(5, 1) for _ in keys] for _ in range(history + 1)]
        ranks = [[[level + rng.gauss(0, 0.3) for _ in range(8)] for level in step] for step in common]
        levels = {
            key: {step: Level(statistics.fmean(ranks[step][at]), 0, 0) for step in range(history)}
            for at, key in enumerate(keys)
        }
        before = {
            key: {step: dict(enumerate(ranks[step][at])) for step in range(history)} for at, key in enumerate(keys)
        }
        now = {
            key: [Value(number, rank, None, None) for rank, number in enumerate(ranks[history][at])]
            for at, key in enumerate(keys)
        }
        judged = metrics.judge(now, levels, {}, before, catalogue.load())
        false_alarms += any(metric.abnormal or metric.outliers for metric in judged)
    assert false_alarms / 150 <= 0.05


def noise(steps: int, ranks: int, seed: int = 3) -> dict[int, dict[int, float]]:
    rng = random.Random(seed)
    return {step: {rank: rng.gauss(1.0, 0.01) for rank in range(ranks)} for step in range(steps)}


def test_a_rank_that_leaves_the_others_is_found():
    history = noise(50, 8)
    values = history.pop(49) | {3: 1.5}
    [outlier] = baseline.outliers(values, history, judged=8)
    assert (outlier.rank, outlier.value) == (3, 1.5)
    assert outlier.others == statistics.median(value for rank, value in values.items() if rank != 3)


def test_a_rank_that_was_always_apart_is_not_news():
    history = {step: values | {3: 1.5 + values[3] - 1.0} for step, values in noise(50, 8).items()}
    assert baseline.outliers(history.pop(49), history, judged=8) == []


def test_a_wide_spread_of_all_ranks_makes_no_outlier():
    history = noise(50, 8)
    values = {rank: 1.0 + 0.2 * (rank - 3.5) for rank in range(8)}
    assert baseline.outliers(values, history, judged=8) == []


@pytest.mark.parametrize(("steps", "ranks"), [(9, 8), (50, 2)])
def test_short_histories_and_two_ranks_say_nothing(steps, ranks):
    history = noise(steps + 1, ranks)
    values = history.pop(steps) | {1: 5.0}
    assert baseline.outliers(values, history, judged=8) == []
