"""What stands beside a step: levels around it, values that were not finite, the next step that is not normal."""

import pytest

from tests.demo_store import LONG_AFTER
from tests.documents import record
from verl_ingest.catalog import metrics
from verl_ingest.context import around, step


@pytest.fixture
def beside(store):
    def gather(run_id: str, number: int, window: int = 50) -> around.Around:
        catalogue = metrics.load()
        with store.open(run_id) as run:
            evidence = step.gather(run, number, catalogue=catalogue, window=window, now=LONG_AFTER)
            findings = step.describe(evidence, catalogue=catalogue, now=LONG_AFTER).findings
            return around.gather(run, evidence, findings, catalogue=catalogue, now=LONG_AFTER, window=window)

    return gather


@pytest.fixture
def anomaly(store):
    def find(run_id: str, number: int, *, forward: bool) -> int | None:
        with store.open(run_id) as run:
            return around.find_anomaly(
                run, number, forward=forward, catalogue=metrics.load(), now=LONG_AFTER, window=50
            )

    return find


def test_golden_six_come_with_the_steps_around(beside, demo):
    found = beside(demo, 128)
    assert [key.name for key in found.levels] == [
        "kl_divergence", "entropy", "reward_mean", "adv_mean", "adv_std", "clip_fraction",
    ]  # fmt: skip
    assert (found.first, found.last, found.previous, found.next) == (78, 178, 127, 129)
    for levels in found.levels.values():
        assert sorted(levels) == list(range(78, 179))
    kl = next(iter(found.levels.values()))
    assert kl[128].high == pytest.approx(0.0816, abs=1e-4)
    assert kl[127].high < 0.02 and kl[129].high < 0.02


def test_the_metrics_of_findings_are_charted_too(beside, demo):
    names = [key.name for key in beside(demo, 88).levels]
    assert names[6:] == ["critic_loss"]


def test_steps_with_a_value_that_is_not_finite(beside, demo):
    assert beside(demo, 130).nonfinite == {"reward_mean": [137]}
    assert beside(demo, 60).nonfinite == {}


def test_the_last_step_has_no_next(beside, demo):
    found = beside(demo, 240)
    assert (found.last, found.previous, found.next) == (240, 239, None)


def test_a_metric_that_is_nowhere_finite_keeps_its_history(beside, write):
    run = "around-nan"
    write(record(run, at, step=at, rank=0, stage="reward", pid=1, metrics={"kl_divergence": 0.01}) for at in range(20))
    write(
        [
            record(
                run,
                20,
                step=20,
                rank=0,
                stage="reward",
                pid=1,
                nonfinite=["kl_divergence"],
                flags=["nan:kl_divergence"],
            )
        ]
    )
    [(key, levels)] = beside(run, 20).levels.items()
    assert (key.name, sorted(levels)) == ("kl_divergence", list(range(20)))


def test_a_step_that_never_ended_shows_what_was_before(beside, write):
    run = "around-crash"
    write(record(run, at, step=at, rank=0, stage="reward", pid=1, metrics={"kl_divergence": 0.01}) for at in range(20))
    write([record(run, 20, kind="log", level="error", step=20, message="CUDA out of memory")])
    [(key, levels)] = beside(run, 20).levels.items()
    assert (key.name, sorted(levels)) == ("kl_divergence", list(range(20)))


@pytest.mark.parametrize(
    ("at", "forward", "found"), [(100, True, 128), (128, True, 137), (137, False, 128), (128, False, 88)]
)
def test_anomalies_are_found_in_both_directions(anomaly, demo, at, forward, found):
    assert anomaly(demo, at, forward=forward) == found


def test_no_anomaly_is_none(anomaly, demo):
    assert anomaly(demo, 240, forward=True) is None
    assert anomaly(demo, 40, forward=False) is None
