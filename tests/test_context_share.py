import pytest

from tests.documents import START, record, sample
from verl_ingest.catalog import metrics
from verl_ingest.context import share
from verl_ingest.errors import InputError, NotFound
from verl_ingest.query.store import Condition

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


def ask(store, text, *, run_id="shares", until=START + 3_600_000):
    with store.open(run_id) as run:
        return share.ask(store, text, length=3_600_000, until=until, run=run, catalogue=CATALOGUE, now=0)


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
    assert "100 % of 1 record has kl_ref > 0.1: 1; 1 more was NaN or infinite." in ask(store, "kl_ref > 0.1").sentence()


def test_a_window_of_a_run_ends_with_the_last_value_that_the_condition_speaks_of(store, write):
    write(
        [
            record("dumped", 10, step=1, metrics={"loss": 1.0}),
            record("dumped", 20_000, step=2, metrics={"other": 1.0}),
            *(sample("dumped", 9_000 + n, 1, 0.0) | {"time_source": "estimated"} for n in (0, 1)),
            sample("dumped", 9_900, 1, None),
        ]
    )
    assert ask(store, "reward < 0.1", run_id="dumped", until=None).sentence() == (
        "100 % of 2 samples have reward < 0.1: 2. "
        "Window of run dumped: 2026-05-28T21:56:41 to 2026-05-28T22:56:41 UTC (its last sample)."
    )
    assert ask(store, "loss < 2", run_id="dumped", until=None).sentence().endswith("T20:26:50 UTC (its last record).")


def test_a_window_without_values_is_said(store, write):
    write([record("none", 10, step=1, metrics={"loss": 1.0})])
    with pytest.raises(NotFound, match=r"No record of run 'none' has the metric loss from .*; widen .*, or leave out"):
        ask(store, "loss < 2", run_id="none", until=START)
    with pytest.raises(NotFound, match="No sample of run 'none' has a score; other names, such as kl_ref, ask its rec"):
        ask(store, "reward < 0.1", run_id="none", until=None)
    with pytest.raises(NotFound, match="No record of run 'none' has the metric abc; reward and score ask its samples"):
        ask(store, "abc < 0.1", run_id="none", until=None)
    with pytest.raises(NotFound, match=r"No record has the metric abc from .*; widen .*, or name a run with --run"):
        share.ask(store, "abc < 1", length=1, until=None, run=None, catalogue=CATALOGUE, now=START)
