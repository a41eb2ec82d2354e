import pytest

from tests.documents import START, Document, line, metric_of, record, sample
from verl_ingest.context import narrow, samples
from verl_ingest.errors import NotFound
from verl_ingest.query.times import iso, milliseconds


def run_of(
    name: str, steps: int, *, ranks: int = 4, every: float = 10, first: int = 1, seed: float = 0.0
) -> list[Document]:
    """A healthy run: two stages, values that vary a little and differ a little between ranks."""
    return [
        record(
            name,
            every * number + 4 * place,
            step=number,
            rank=rank,
            stage=stage,
            host=f"node-{rank // 2}",
            pid=100 + rank,
            metrics={metric: value + 0.01 * ((7 * number + 3 * rank + seed) % 5)},
        )
        for number in range(first, first + steps)
        for rank in range(ranks)
        for place, (stage, metric, value) in enumerate(
            [("rollout", "rollout/latency_ms", 3_000.0), ("reward", "kl_divergence", 0.1)]
        )
    ]


def replaced(documents: list[Document], where: dict, **changes) -> list[Document]:
    return [
        document | changes if all(document.get(name) == value for name, value in where.items()) else document
        for document in documents
    ]


def test_the_last_step_of_all_is_told_where_the_run_said_it(context_of, write):
    write([*run_of("total", 3), line("total", 0, "Total steps: 300, num_warmup_steps: 0")])
    assert context_of("total", 2).body["total_steps"] == 300
    write(run_of("endless", 3))
    assert context_of("endless", 2).body["total_steps"] is None


def test_a_crash_in_a_step_that_never_ended_is_told_with_the_steps_before_it(context_of, write):
    crash = line("crash", 135, "CUDA out of memory", step=13, pid=101, level="error")
    hydra = line("crash", 134, "Error executing job with overrides: ['a=1']", step=13, level="error")
    engine = record("crash", 131, step=13, stage="rollout", metrics={"Running": 32.0}) | {"step_source": "stream"}
    write([*run_of("crash", 12), engine, hydra | {"extra": {"overrides": {"a": "1"}}}, crash])
    body = context_of("crash", 13).body
    assert body["summary"][0] == "First error on rank 1: CUDA out of memory."
    assert body["missing_ranks"] == {"reward": [0, 1, 2, 3], "rollout": [0, 1, 2, 3]}


def test_an_error_without_a_rank_is_told_by_its_processes(context_of, write):
    alike = {"error.type": "E", "error.message": "boom", "error.fingerprint": "f"}
    errors = [line("nowhere", 25, "", step=2, pid=pid, **alike) for pid in (77, 78)]
    write([*run_of("nowhere", 3), *errors])
    body = context_of("nowhere", 2).body
    assert body["summary"][0] == "First error on pids 77, 78: E: boom."
    assert [(error["pids"], error["count"]) for error in body["errors"]] == [([77, 78], 2)]


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


def test_times_that_no_line_has_are_called_estimated(context_of, write):
    write([document | {"time_source": "estimated"} for document in run_of("undated", 3)])
    assert context_of("undated", 2).body["time"]["estimated"]


def test_a_step_that_is_not_there(context_of, demo):
    with pytest.raises(NotFound, match="Run 'ask-demo' has no step 500; the nearest is 240"):
        context_of(demo, 500)


def test_too_little_history_is_said(context_of, write):
    write(run_of("young", 5))
    body = context_of("young", 5).body
    assert body["summary"] == ["Nothing stands out, but only 4 steps before it are there to judge by (10 are needed)."]
    assert metric_of(body, "kl_divergence")["previous"]["z"] is None
    assert metric_of(body, "kl_divergence")["previous"]["steps"] == 4
    assert metric_of(context_of("young", 1).body, "kl_divergence")["previous"] == {
        "steps": 0, "mean": None, "median": None, "mad": None, "z": None,
    }  # fmt: skip


def test_a_silent_rank_is_missing_in_each_of_its_stages(context_of, write):
    write([document for document in run_of("silent", 15) if not (document["step"] == 15 and document["rank"] == 2)])
    body = context_of("silent", 15).body
    assert body["missing_ranks"] == {"reward": [2], "rollout": [2]}
    assert body["summary"][0] == (
        "Rank 2 is missing in reward and rollout, seen in the steps before; "
        "`verl-ingest audit PATH` tells whether lines are lost."
    )


def test_a_stage_that_logs_every_few_steps_misses_nobody(context_of, write):
    rare = [
        record("rare", 10 * number, step=number, rank=rank, stage="system", metrics={"gpu/utilization_pct": 80.0})
        for number in range(5, 15, 5)
        for rank in range(4)
    ]
    write([*run_of("rare", 16), *rare])
    assert context_of("rare", 16).body["missing_ranks"] == {}


def test_a_step_in_progress_misses_nobody_yet(context_of, write):
    write([document for document in run_of("running", 15) if not (document["step"] == 15 and document["rank"] == 2)])
    body = context_of("running", 15, now=START + 160_000).body
    assert body["missing_ranks"] == {}
    assert body["summary"][-1] == "The step may still be in progress: its last record is 6 s old."
    earlier = context_of("running", 14, now=START + 160_000).body
    assert "progress" not in " ".join(earlier["summary"])


def test_half_a_step_is_said_to_be_incomplete(context_of, write):
    """Every rank is there, each with one of its usual three records a stage."""
    documents = [
        record("half", 10 * number + part, step=number, rank=rank, stage="actor", metrics={f"m{part}": 1.0 + rank})
        for number in range(1, 16)
        for rank in range(4)
        for part in range(1 if number == 15 else 3)
    ]
    write(documents)
    body = context_of("half", 15).body
    assert (body["completeness"]["found"], body["completeness"]["expected"]) == (4, 12)
    assert (
        "Only 4 metric records of the step are here, the steps before had 12; "
        "`verl-ingest audit PATH` tells whether lines are lost."
    ) in body["summary"]


def test_an_earlier_attempt_does_not_leak_into_the_baseline(context_of, write):
    old = [document | {"metrics": {"loss": 100.0}} for document in run_of("leak", 20)]
    new = [
        document | {"metrics": {"loss": 1.0}, "process.pid": 900 + document["rank"]}
        for document in run_of("leak", 15, every=10)
    ]
    later = [document | {"@timestamp": document["@timestamp"].replace("T20:", "T22:")} for document in new]
    write([*old, *later])
    body = context_of("leak", 15).body
    assert (body["attempt"], [attempt["attempt"] for attempt in body["attempts"]]) == (2, [1, 2])
    assert {metric["previous"]["median"] for metric in body["metrics"]} == {1.0}
    assert context_of("leak", 18).body["attempt"] == 1


def test_the_last_value_of_a_rank_counts_and_ranks_are_weighted(context_of, write):
    write(
        [
            record("weights", 1, step=1, rank=0, stage="reward", weight=100, metrics={"acc": 0.1}),
            record("weights", 2, step=1, rank=0, stage="reward", weight=100, metrics={"acc": 0.8}),
            record("weights", 3, step=1, rank=1, stage="reward", weight=200, metrics={"acc": 0.6}),
        ]
    )
    metric = metric_of(context_of("weights", 1).body, "acc")
    assert (metric["mean"], metric["weight"], metric["n"]) == (pytest.approx(2 / 3), 300, 2)
    assert (metric["min"], metric["max"], metric["values"]) == (0.6, 0.8, {"0": 0.8, "1": 0.6})


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


def test_the_first_error_is_the_first_by_true_time(context_of, write):
    """The clock of node-1 is 2 s ahead, so its error is the first although its stamp is the later one."""
    documents = [
        document | {"@timestamp": shifted(document, 2 if document["host.name"] == "node-1" else 0)}
        for document in run_of("errors", 12)
    ]
    oom = {"error.type": "torch.OutOfMemoryError", "error.message": "CUDA out of memory", "error.fingerprint": "a"}
    nccl = {"error.type": "RuntimeError", "error.message": "NCCL error", "error.fingerprint": "b"}
    write(
        [
            *documents,
            line("errors", 126.5, "", step=12, rank=3, host="node-1", **oom, **{"error.stack_trace": "Traceback\n  x"}),
            *(line("errors", 125 + rank / 10, "", step=12, rank=rank, host="node-0", **nccl) for rank in (0, 1)),
            line("errors", 124, "Saving", step=12, level="info"),
            line("errors", 124, "Careful", step=12, level="warning", rank=1),
            line("errors", 125, "Careful", step=12, level="warning", rank=2),
        ]
    )
    body = context_of("errors", 12).body
    assert body["clock_skew"] == {"node-1": 2.0}
    assert [(error["type"], error["count"], error["ranks"]) for error in body["errors"]] == [
        ("torch.OutOfMemoryError", 1, [3]),
        ("RuntimeError", 2, [0, 1]),
    ]
    assert body["errors"][0]["stack_trace"] == "Traceback\n  x"
    assert body["summary"][0] == (
        "First error on rank 3: torch.OutOfMemoryError: CUDA out of memory; then ranks 0\u20131: NCCL error."
    )
    assert [(entry["message"], entry["count"], entry["ranks"]) for entry in body["logs"]] == [
        ("Saving", 1, []),
        ("Careful", 2, [1, 2]),
    ]


def shifted(document: Document, by_s: float) -> str:
    return iso(milliseconds(document) + by_s * 1_000)


def test_the_lowest_scores_of_the_newest_attempt(context_of, write):
    old, new = run_of("scores", 3), run_of("scores", 3)
    later = [document | {"process.pid": 7, "@timestamp": shifted(document, 1_000)} for document in new]
    write(
        [
            *old,
            *later,
            sample("scores", 35, 3, -9.0, output="old"),
            *(sample("scores", 1_035, 3, score / 10, output="x" * 5_000, uid=str(score)) for score in range(9)),
        ]
    )
    lowest = context_of("scores", 3).body["samples"]
    assert [entry["score"] for entry in lowest] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert set(lowest[0]) == {"split", "score", "output", "uid"}
    assert len(lowest[0]["output"]) == samples.TEXT


def test_a_run_of_samples_alone_has_steps(context_of, write):
    write([sample("samples-only", 1, 4, 0.5)])
    body = context_of("samples-only", 4).body
    assert (body["metrics"], len(body["samples"]), body["time"]) == (
        [],
        1,
        {"first": None, "last": None, "estimated": False},
    )


@pytest.mark.parametrize("kind", ["nan", "inf", "-inf", "null"])
def test_the_kind_of_a_value_that_is_not_finite(context_of, write, kind):
    run = f"nonfinite{kind}"
    write([record(run, 1, step=1, rank=1, stage="actor", nonfinite=["loss"], flags=["truncated", f"{kind}:loss"])])
    body = context_of(run, 1).body
    assert body["nonfinite"] == [{"metric": "loss", "rank": 1, "stage": "actor", "kind": kind}]
    assert body["summary"][0].startswith("loss of rank 1 is ")


def test_a_null_is_what_another_line_says_it_was(context_of, write):
    lines = [
        record("nulls", at, step=1, stage="trainer", nonfinite=["loss"], flags=[f"{kind}:loss"])
        for at, kind in ((1, "null"), (2, "inf"), (3, "null"))
    ]
    write(lines)
    assert [entry["kind"] for entry in context_of("nulls", 1).body["nonfinite"]] == ["inf"]


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


def test_a_shorter_window_looks_at_fewer_steps(context_of, demo):
    assert metric_of(context_of(demo, 128, window=20).body, "kl_divergence")["previous"]["steps"] == 20


def test_a_context_can_be_narrowed(context_of, demo):
    context = context_of(demo, 175)
    actor = narrow.to_stage(context, "actor").body
    assert {metric["stage"] for metric in actor["metrics"]} == {"actor"}
    assert [stage["stage"] for stage in actor["stages"]] == ["actor"]
    assert [straggler["stage"] for straggler in actor["stragglers"]] == ["actor"]
    three = narrow.to_rank(context, 3).body
    assert (three["ranks"], three["stragglers"]) == ([3], [])
    assert {tuple(metric["values"]) for metric in three["metrics"]} == {("3",)}
    with pytest.raises(NotFound, match="no stage 'actr'; it has rollout, reward, critic"):
        narrow.to_stage(context, "actr")
    with pytest.raises(NotFound, match="no rank 9; it has 0, 1, 2"):
        narrow.to_rank(context, 9)


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
