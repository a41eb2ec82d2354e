"""What stands out in a step: what is called abnormal, what explains it, and in which words."""

from tests.documents import Document, line, metric_of, record, replaced, run_of, sample


def test_a_crash_in_a_step_that_never_ended_is_told_with_the_steps_before_it(context_of, write):
    crash = line("crash", 135, "CUDA out of memory", step=13, pid=101, level="error")
    hydra = line("crash", 134, "Error executing job with overrides: ['a=1']", step=13, level="error")
    engine = record("crash", 131, step=13, stage="rollout", metrics={"Running": 32.0}) | {"step_source": "stream"}
    write([*run_of("crash", 12), engine, hydra | {"extra": {"overrides": {"a": "1"}}}, crash])
    body = context_of("crash", 13).body
    assert body["summary"][0] == "First error on rank 1: CUDA out of memory."
    assert body["missing_ranks"] == {"reward": [0, 1, 2, 3], "rollout": [0, 1, 2, 3]}


def test_what_is_nan_on_the_same_ranks_is_told_once_the_golden_six_first(context_of, write):
    names = ["a", "b", "c", "reward_mean", "d"]
    nan = {"nonfinite": names, "flags": [f"nan:{name}" for name in names]}
    write([*run_of("nans", 3), record("nans", 25, step=2, rank=1, stage="reward", **nan)])
    assert context_of("nans", 2).body["summary"][0] == "reward_mean, a, b and 2 more metrics of rank 1 are NaN."


def test_one_number_under_two_names_is_told_once(context_of, write):
    def values(step: int) -> dict[str, float]:
        score = 0.1 if step == 30 else 0.7 + 0.001 * (step % 5)
        return {"critic/rewards/mean": score, "critic/score/mean": score}

    write([record("twins", step, step=step, stage="trainer", metrics=values(step)) for step in range(1, 31)])
    [sentence] = context_of("twins", 30).body["summary"]
    assert sentence.startswith("critic/score/mean 0.1 is 85.8 sigma below")


def test_a_checkpoint_explains_a_long_step(context_of, write):
    def values(step: int) -> dict[str, float]:
        saves = {"timing_s/save_checkpoint": 46.6} if step == 30 else {}
        return {"timing_s/step": 100.0 if saves else 53.0 + 0.1 * (step % 5), **saves}

    write([record("saves", step, step=step, stage="trainer", metrics=values(step)) for step in range(1, 31)])
    assert context_of("saves", 30).body["summary"] == [
        "Step 30 is normal: 2 metrics are as in the 29 steps before.",
        "It did extra work: timing_s/save_checkpoint 46.6 s.",
    ]


def test_too_little_history_is_said(context_of, write):
    write(run_of("young", 5))
    body = context_of("young", 5).body
    assert body["summary"] == ["Nothing stands out, but only 4 steps before it are there to judge by (10 are needed)."]
    assert metric_of(body, "kl_divergence")["previous"]["z"] is None
    assert metric_of(body, "kl_divergence")["previous"]["steps"] == 4
    assert metric_of(context_of("young", 1).body, "kl_divergence")["previous"] == {
        "steps": 0, "mean": None, "median": None, "mad": None, "z": None,
    }  # fmt: skip


def test_a_straggler_needs_no_history(context_of, write):
    write(
        record(
            "lerobot",
            1,
            step=1,
            rank=rank,
            stage="trainer",
            metrics={"timing_s/step": 41.0 if rank == 3 else 12.0 + rank / 100},
        )
        for rank in range(8)
    )
    body = context_of("lerobot", 1).body
    assert body["summary"][0] == "Rank 3 is a straggler: timing_s/step 41 s is 3.4 times the other ranks'."
    [straggler] = body["stragglers"]
    assert (straggler["rank"], straggler["duration_s"]) == (3, 41.0)


def test_the_ranks_of_a_slow_host_are_named_together(context_of, write):
    write(
        record(
            "slow-host",
            1,
            step=1,
            rank=rank,
            stage="actor",
            host=f"node-{rank // 4}",
            metrics={"timing_s/update_actor": (30.0 if rank // 4 == 2 else 10.0) + rank / 100},
        )
        for rank in range(16)
    )
    assert context_of("slow-host", 1).body["summary"] == [
        "Ranks 8\u201311 (node-2) are stragglers: timing_s/update_actor 30.1 s is 3.0 times the other ranks'."
    ]


def test_two_spellings_of_one_quantity_are_called_abnormal_once(context_of, write):
    console = [
        record("spelt", 10 * number + 5, step=number, stage="trainer", metrics={"KL": 0.5 if number == 30 else 0.1})
        for number in range(1, 31)
    ]
    ranks = replaced(run_of("spelt", 30), {"step": 30, "stage": "reward"}, metrics={"kl_divergence": 0.5})
    write([*console, *ranks])
    context = context_of("spelt", 30)
    assert [finding.metrics for finding in context.findings] == [("kl_divergence",)]
    assert metric_of(context.body, "KL")["previous"]["z"] > 5


def test_at_most_five_metrics_are_called_abnormal(context_of, write):
    names = [f"odd_{number}" for number in range(9)]
    write(
        record(
            "many", 10 * number, step=number, rank=0, stage="actor",
            metrics=dict.fromkeys(names, (50.0 if number == 30 else 1.0) + number % 3),
        )
        for number in range(1, 31)
    )  # fmt: skip
    context = context_of("many", 30)
    assert len({name for finding in context.findings for name in finding.metrics}) == 5
    assert all(metric["previous"]["z"] > 5 for metric in context.body["metrics"])


def driver_run(name: str, steps: int, **last: float) -> list[Document]:
    """A run that only its driver logs; the last step has other values."""
    usual = {"timing_s/step": 50.0, "actor/entropy": 0.5, "custom": 0.0}
    return [
        record(name, 50 * number, step=number, stage="trainer", metrics=usual | (last if number == steps else {}))
        for number in range(1, steps + 1)
    ]


def test_a_validation_explains_a_long_step(context_of, write):
    write(driver_run("validated", 30, **{"timing_s/step": 100.0, "timing_s/testing": 47.0}))
    write(driver_run("slow", 30, **{"timing_s/step": 100.0}))
    assert context_of("validated", 30).findings == ()
    assert context_of("slow", 30).body["summary"] == [
        "timing_s/step 100 s is 20.0 sigma above steps 1\u201329 (median 50)."
    ]


def test_a_value_that_never_changed_before(context_of, write):
    write(driver_run("constant", 30, custom=0.25))
    assert context_of("constant", 30).body["summary"] == ["custom is 0.25; in steps 1\u201329 it was 0 throughout."]


def drifting(name: str, first: float, last: float) -> list[Document]:
    values = [first + (last - first) * max(number - 60, 0) / 140 + 0.001 * (number % 5) for number in range(1, 201)]
    return [
        record(name, 10 * number, step=number, stage="trainer", metrics={"actor/entropy": value})
        for number, value in enumerate(values, 1)
    ]


def test_a_slow_drift_across_an_alarm_limit_is_abnormal(context_of, write):
    write(drifting("drift", 1.9, 1.1))
    assert context_of("drift", 200).body["summary"][-1] == (
        "actor/entropy 1.1 nats is below its alarm limit 1.2; it was 1.9 in the first 50 steps."
    )
    assert "alarm" not in " ".join(context_of("drift", 100).body["summary"])


def test_a_run_that_began_beyond_a_limit_is_not_held_to_it(context_of, write):
    write(drifting("beyond", 0.6, 0.5))
    assert "alarm" not in " ".join(context_of("beyond", 200).body["summary"])


def test_a_deviation_to_the_good_side_alone_is_normal(context_of, write):
    write(replaced(run_of("faster", 30), {"step": 30, "stage": "rollout"}, metrics={"rollout/latency_ms": 500.0}))
    context = context_of("faster", 30)
    assert context.findings == ()
    assert metric_of(context.body, "rollout/latency_ms")["previous"]["z"] < -5


def test_many_empty_responses_are_told_where_no_metric_says_so(context_of, write):
    def of_step(step: int, empty: int) -> list[Document]:
        return [
            sample("emptied", 10 * step + 9, step, 0.5, output_length=0 if place < empty else 20 + place)
            for place in range(20)
        ]

    write([*run_of("emptied", 12), *of_step(10, 1), *of_step(11, 0), *of_step(12, 8)])
    body = context_of("emptied", 12).body
    assert body["summary"] == ["8 of 20 responses (40 %) are empty; in the steps before 2.5 % were."]
    assert context_of("emptied", 10).findings == ()
    assert [entry["output_length"] for entry in body["longest"]] == [39, 38, 37]
    assert (body["scores"]["now"]["n"], body["scores"]["now"]["empty"], body["scores"]["before"]["n"]) == (20, 8, 40)


def test_at_most_five_metrics_are_named_and_the_rest_counted(context_of, write):
    def values(step: int) -> dict[str, float]:
        return {
            f"m{number}": 1.0 + 0.01 * ((step + number) % 5) + (number + 3 if step == 30 else 0) for number in range(8)
        }

    write([record("crowded", step, step=step, stage="actor", rank=0, metrics=values(step)) for step in range(1, 31)])
    summary = context_of("crowded", 30).body["summary"]
    assert len(summary) == 6
    assert summary[-1] == "3 more metrics left the usual range."
