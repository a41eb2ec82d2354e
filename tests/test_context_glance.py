"""Whether a run is abnormal at a glance: levels of its golden six, as step summaries have them -> since when."""

import pytest

from verl_ingest.catalog import metrics
from verl_ingest.context import glance
from verl_ingest.query.store import Level

CATALOGUE = metrics.load()


def levels(last: int, bad: range = range(0), *, first: int = 1) -> dict[str, dict[int, Level]]:
    """Return the reward of steps first..last: it varies a little, and has collapsed in the bad ones."""
    rewards = {step: (0.1 if step in bad else 0.5) + 0.01 * (7 * step % 5) for step in range(first, last + 1)}
    return {"reward_mean": {step: Level(reward, reward, reward) for step, reward in rewards.items()}}


@pytest.mark.parametrize(
    ("bad", "step", "expected"),
    [
        (range(0), 100, False),
        (range(90, 101), 100, True),
        (range(99, 101), 100, True),
        (range(100, 101), 100, False),  # may be chance
        (range(90, 99), 100, False),  # it is over
        (range(0), 102, False),
        (range(90, 101), 103, None),  # of the last steps there is no summary
    ],
)
def test_two_of_the_last_three_steps_must_be_abnormal(bad, step, expected):
    assert glance.is_abnormal(levels(100, bad), step=step, catalogue=CATALOGUE) is expected


def test_too_few_steps_say_nothing():
    assert glance.is_abnormal(levels(10, range(8, 11)), step=10, catalogue=CATALOGUE) is None
    assert glance.is_abnormal({}, step=10, catalogue=CATALOGUE) is None


def test_a_deviation_to_the_good_side_is_not_abnormal():
    better = levels(100)
    better["reward_mean"] |= {step: Level(0.9, 0.9, 0.9) for step in (98, 99, 100)}
    assert glance.is_abnormal(better, step=100, catalogue=CATALOGUE) is False


@pytest.mark.parametrize(
    ("bad", "since"),
    [
        (range(90, 101), 90),
        ([80, *range(90, 101)], 80),  # fewer than ten normal steps between them: one trouble
        ([70, *range(90, 101)], 90),
    ],
)
def test_the_trouble_began_with_its_first_abnormal_step(bad, since):
    assert glance.began(levels(100, bad), step=100, catalogue=CATALOGUE) == since


def test_trouble_that_may_be_older_than_what_was_looked_at_has_no_first_step():
    """A trouble that lasts is usual after a while; here it comes back every eight steps."""
    back = [step for step in range(60, 402) if step % 8 < 2]
    assert glance.is_abnormal(levels(401, back), step=401, catalogue=CATALOGUE) is True
    assert glance.began(levels(401, back, first=200), step=401, catalogue=CATALOGUE) is None
