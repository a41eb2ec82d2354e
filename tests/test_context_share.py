import pytest

from tests.documents import START, record, sample
from verl_ingest.catalog import metrics
from verl_ingest.context import share
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import Condition

pytest_plugins = ["tests.demo_store"]

CATALOGUE = metrics.load()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("reward < 0.1", Condition("reward", (), "<", 0.1)),
        (" score>=-1e-3 ", Condition("score", (), ">=", -0.001)),
        ("Clip Fraction > .3", Condition("Clip Fraction", ("Clip Fraction",), ">", 0.3)),
        ("val-core/gsm8k/mean@4 != 1", Condition("val-core/gsm8k/mean@4", ("val-core/gsm8k/mean@4",), "!=", 1.0)),
        ("actor_loss == 0", Condition("actor_loss", CATALOGUE.find("actor_loss").names, "==", 0.0)),
    ],
)
def test_conditions(text, expected):
    assert share.parse(text, CATALOGUE) == expected


def test_a_name_of_the_catalogue_stands_for_all_spellings():
    assert {"kl_ref", "KL", "kl_divergence"} <= set(share.parse("kl_ref > 1", CATALOGUE).names)
    assert share.parse("kl_divergence > 1", CATALOGUE).names == ("kl_divergence",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reward",
        "reward <",
        "< 1",
        "reward < x",
        "reward < nan",
        "reward < 1e400",
        "reward = 1",
        "1 < reward < 2",
        "a < 1 or b < 2",
    ],
)
def test_what_is_no_condition_is_refused(text):
    with pytest.raises(InputError, match="is not a condition; write a name, one of"):
        share.parse(text, CATALOGUE)


def ask(store, text, *, length=3_600_000, run_id="shares"):
    return share.ask(store, text, since=START, until=START + length, run_id=run_id, catalogue=CATALOGUE)


def test_the_answer_states_n_and_the_window(store, write):
    write(
        [
            *(sample("shares", n, 1, n / 10) for n in range(8)),
            sample("shares", 9, 1, 0.0, split="val"),
            record("shares", 1, step=1, rank=0, metrics={"kl_divergence": 0.5}),
            record("shares", 1, step=1, rank=1, nonfinite=["kl_divergence"]),
        ]
    )
    answer = ask(store, "reward < 0.1")
    assert answer.sentence() == (
        "22.2 % of 9 samples (8 train, 1 val) have reward < 0.1: 2. "
        "Window of run shares: 2026-05-28T20:26:40 to 2026-05-28T21:26:40 UTC."
    )
    assert answer.entry() == {
        "condition": "reward < 0.1", "of": "samples", "names": [], "share": 2 / 9, "hits": 2, "n": 9, "nonfinite": 0,
        "splits": {"train": 8, "val": 1}, "run_id": "shares",
        "window": {"since": "2026-05-28T20:26:40.000Z", "until": "2026-05-28T21:26:40.000Z"},
    }  # fmt: skip
    assert (
        "100 % of 1 records have kl_ref > 0.1: 1; 1 more were NaN or infinite." in ask(store, "kl_ref > 0.1").sentence()
    )


def test_a_window_without_values_is_said(store):
    with pytest.raises(NotFound, match=r"No sample of run 'none' has a score from 2026-05-28T20:26:40 to .*; widen"):
        ask(store, "reward < 0.1", run_id="none")
    with pytest.raises(NotFound, match="No record of run 'none' has the metric abc from"):
        ask(store, "abc < 0.1", run_id="none")
