import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents import record
from verl_ingest.catalog import metrics
from verl_ingest.context import series
from verl_ingest.errors import NotFound


@pytest.fixture
def read(store):
    def read_(run_id: str, name: str, **options):
        with store.open(run_id) as run:
            return series.read(run, name, catalogue=metrics.load(), **options)

    return read_


def test_a_metric_over_ranks_by_step(read, write):
    write(record("line", n, step=n, rank=rank, metrics={"loss": n + rank}) for n in (1, 2, 5) for rank in (0, 2))
    found = read("line", "loss")
    assert found.entry() == {
        "run_id": "line",
        "metric": "loss",
        "stage": None,
        "unit": "",
        "points": [[1, 2.0, 1.0, 3.0], [2, 3.0, 2.0, 4.0], [5, 6.0, 5.0, 7.0]],
    }
    assert list(read("line", "loss", most=2).levels) == [2, 5]


def test_a_catalogue_name_stands_for_the_spelling_that_most_records_have(read, write):
    write(record("spelt", n, step=n, rank=n % 2, metrics={"kl_divergence": 0.1}) for n in range(1, 5))
    write([record("spelt", 5, step=5, stage="trainer", metrics={"actor/kl_loss": 0.2})])
    found = read("spelt", "kl_ref")
    assert (found.key.name, found.key.ranked, found.unit) == ("kl_divergence", True, "nats")
    assert read("spelt", "actor/kl_loss").entry()["points"] == [[5, 0.2, 0.2, 0.2]]


def test_the_newest_attempt_counts(read, write):
    write(record("again", n, step=n, rank=0, pid=1, metrics={"loss": 1.0}) for n in (1, 2, 3, 4))
    write(record("again", 10 + n, step=n, rank=0, pid=2, metrics={"loss": 2.0}) for n in (3, 4, 5))
    assert [point[1] for point in read("again", "loss").entry()["points"]] == [1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["nothing", "*", "los*", "kl_ref"])
def test_a_metric_that_is_not_there(read, write, name):
    write([record("bare", 1, step=1, metrics={"loss": 1.0})])
    with pytest.raises(NotFound, match="has no metric"):
        read("bare", name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Kl_", "kl_divergence or kl_ref"),
        ("kl_divergense", "kl_divergence"),
        ("clip fraction", "Clip Fraction"),
    ],
)
def test_metrics_that_are_called_alike_are_named(read, write, name, meant):
    write([record("alike", 1, step=1, metrics={"kl_divergence": 0.01, "Clip Fraction": 0.1})])
    with pytest.raises(NotFound, match=rf"has no metric {name}; did you mean {meant}\?$"):
        read("alike", name)


def test_smoothing_is_that_of_tensorboard():
    assert series.smoothed([1.0, 2.0, 4.0], 0.0) == [1.0, 2.0, 4.0]
    assert series.smoothed([1.0, 2.0, 4.0], 0.5) == pytest.approx([1.0, 5 / 3, 3.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 0.99))
def test_a_smoothed_value_lies_between_those_so_far(values, weight):
    for count, value in enumerate(series.smoothed(values, weight), 1):
        low, high = min(values[:count]), max(values[:count])
        assert low - 1e-3 <= value <= high + 1e-3
