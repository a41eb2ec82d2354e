import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ingest.context.pooling import Value, last_values, pool, worst_rank
from verl_ingest.query.store import Key

numbers = st.floats(-1e6, 1e6)


def value(number: float, rank: int = 0, weight: float | None = None) -> Value:
    return Value(number, rank, weight, None)


def test_a_mean_over_ranks_is_weighted_by_their_counts():
    pooled = pool([value(0.8, 0, 100), value(0.6, 1, 200)], "down")
    assert pooled.mean == pytest.approx(0.66667, abs=1e-5)
    assert (pooled.low, pooled.high, pooled.n, pooled.weight, pooled.worst_rank) == (0.6, 0.8, 2, 300, 1)


def test_one_rank_without_a_count_makes_every_rank_count_once():
    pooled = pool([value(0.8, 0, 100), value(0.6, 1, None)], "down")
    assert pooled.mean == pytest.approx(0.7)
    assert pooled.weight is None


def test_counts_that_are_all_zero_say_nothing():
    assert pool([value(1.0, 0, 0), value(3.0, 1, 0)], "up").mean == 2.0


@given(st.lists(st.tuples(numbers, st.integers(1, 10_000)), min_size=1, max_size=40))
def test_pooling_ranks_gives_what_their_single_items_give(parts):
    pooled = pool([value(number, rank, count) for rank, (number, count) in enumerate(parts)], "either")
    total = sum(count for _, count in parts)
    mean = math.fsum(number * count for number, count in parts) / total
    variance = math.fsum(count * (number - mean) ** 2 for number, count in parts) / total
    assert pooled.mean == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert pooled.std == pytest.approx(math.sqrt(variance), rel=1e-9, abs=1e-9)
    assert (pooled.low, pooled.high) == (min(n for n, _ in parts), max(n for n, _ in parts))
    assert pooled.values == {rank: number for rank, (number, _) in enumerate(parts)}


@pytest.mark.parametrize(("direction", "worst"), [("up", 2), ("down", 0), ("either", 2), ("none", 2)])
def test_the_worst_rank_is_on_the_bad_side(direction, worst):
    assert worst_rank({0: 1.0, 1: 2.0, 2: 9.0}, direction) == worst


def metric(rank: int | None, stage: str = "actor", **metrics: float) -> dict:
    return {"kind": "metric", "stage": stage, "metrics": metrics} | ({} if rank is None else {"rank": rank})


def test_the_last_value_of_a_rank_counts():
    values = last_values([metric(0, loss=1.0), metric(1, loss=5.0), metric(0, loss=2.0)])
    assert [(v.rank, v.number) for v in values[Key("loss", "actor", True)]] == [(0, 2.0), (1, 5.0)]


def test_a_drivers_value_is_left_out_where_ranks_have_their_own():
    values = last_values([metric(None, loss=9.0), metric(0, loss=1.0), metric(None, "trainer", loss=3.0)])
    assert set(values) == {Key("loss", "actor", True), Key("loss", "trainer", False)}


def test_lines_of_text_have_no_values():
    assert last_values([{"kind": "log", "metrics": {"loss": 1.0}, "message": "x"}]) == {}
