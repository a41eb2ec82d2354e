"""The context of the demo's steps: each planted fault is named, and a healthy step is normal."""

import statistics

import pytest

from tests.documents import metric_of
from verl_ingest.context import attempts, pooling
from verl_ingest.query.store import Key


def test_errors_have_the_rank_of_their_process(context_of, demo_with_console):
    errors = context_of(demo_with_console, 199).body["errors"]
    assert [(error["ranks"], error["message"].split(":")[0]) for error in errors] == [
        ([3], "CUDA OOM during critic forward! Attempting recovery..."),
        ([3], "torch.OutOfMemoryError"),
        ([5], "RuntimeError"),
    ]


def test_the_spike_of_one_rank_is_named_first(context_of, demo):
    body = context_of(demo, 128).body
    first = body["summary"][0]
    assert first.startswith("KL 0.0204 nats is 4.") and "sigma above steps 78\u2013127" in first
    assert first.endswith("rank 3 alone drives it (0.0816).")
    assert metric_of(body, "kl_divergence")["worst_rank"] == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (61, ["The step took 57 s"]),
        (88, ["critic_loss 0.491 is over 100 sigma above"]),
        (137, ["reward_mean of rank 5 is NaN."]),
        *(
            (number, ["rollout/latency_ms", "sigma above", "gpu/utilization_pct", "below"])
            for number in range(160, 166)
        ),
        *((number, ["Rank 6 (train-node-02) is a straggler"]) for number in range(170, 181)),
        *((number, ["rollout/empty_response_ratio"]) for number in range(190, 194)),
        (201, ["KL", "above its alarm limit 0.05", "Attempt 1 logged this step before", "without rank 7"]),
        (240, ["entropy", "below its alarm limit 1.2", "reward_mean"]),
    ],
)
def test_planted_faults_are_named(context_of, demo, number, words):
    summary = " ".join(context_of(demo, number).body["summary"])
    assert [word for word in words if word not in summary] == []


@pytest.mark.parametrize("number", [50, 100])
def test_a_healthy_step_is_normal(context_of, demo, number):
    context = context_of(demo, number)
    assert context.findings == ()
    assert context.body["summary"] == [
        f"Step {number} is normal: 23 metrics on 8 ranks are as in the {min(number - 1, 50)} steps before."
    ]


def test_healthy_steps_are_normal(context_of, demo):
    """At least 95 of 100 steps without a planted fault."""
    healthy = set(range(20, 151)) - {61, 88, 128, 137}
    abnormal = [number for number in healthy if context_of(demo, number).findings]
    assert len(abnormal) <= 0.05 * len(healthy)


def test_the_console_adds_errors_and_warnings_and_no_false_alarm(context_of, demo_with_console):
    body = context_of(demo_with_console, 199).body
    assert body["summary"][0] == (
        "First error on rank 3: CUDA OOM during critic forward! Attempting recovery...; then rank 5: NCCL error."
    )
    assert [error["type"] for error in body["errors"]] == [None, "torch.OutOfMemoryError", "RuntimeError"]
    [warning] = [line for line in context_of(demo_with_console, 137).body["logs"] if line["level"] == "warning"]
    assert (warning["message"], warning["ranks"]) == ("NaN detected in reward tensor! Filling with zeros...", [5])
    assert context_of(demo_with_console, 155).body["summary"] == [
        "Warning on rank 0: Zero gradients detected in actor update! Skipping step.",
        "KL is 93.4 % of the loss.",
    ]
    assert context_of(demo_with_console, 100).findings == ()
    assert "rank 3 alone drives it" in context_of(demo_with_console, 128).body["summary"][0]
    assert context_of(demo_with_console, 203).body["attempts"][0]["attempt"] == 1


def test_a_resumed_step_is_that_of_the_newest_attempt(context_of, demo):
    body = context_of(demo, 203).body
    assert body["attempt"] == 2
    assert body["ranks"] == list(range(8))
    assert body["missing_ranks"] == {}
    first, second = body["attempts"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["last"] < second["first"]
    assert set(first["metrics"]) == {"kl_divergence", "entropy", "reward_mean", "adv_mean", "adv_std", "clip_fraction"}
    assert first["metrics"] != second["metrics"]
    assert body["completeness"] | {"age_s": 0} == {"expected": 94, "found": 94, "flagged": 0, "age_s": 0}


def test_the_clock_of_the_second_node_is_ahead(context_of, demo):
    assert context_of(demo, 50).body["clock_skew"] == {"train-node-02": 0.35}


@pytest.mark.parametrize(("number", "host"), [(128, "train-node-01"), (137, "train-node-02"), (175, "train-node-02")])
def test_the_host_of_the_rank_that_is_named_stands_beside_the_others(context_of, demo, number, host):
    resources = context_of(demo, number).body["resources"]
    assert (resources["host"], resources["hosts"]) == (host, 2)
    assert resources["metrics"]["gpu/utilization_pct"].keys() == {"unit", "value", "median"}


def test_the_baseline_is_what_the_records_of_the_steps_before_give(store, context_of, demo):
    """Across a resume, too: steps 156 to 199 of the first attempt, 200 to 205 of the second."""
    with store.open(demo) as run:
        known = attempts.find(run, run.records(206))
        means: dict[Key, list[float]] = {}
        for number in range(156, 206):
            parts = attempts.part(run.records(number), known)
            for key, values in pooling.last_values(parts[max(parts)]).items():
                means.setdefault(key, []).append(pooling.pool(values, "either").mean)
    for metric in context_of(demo, 206).body["metrics"]:
        before = means[Key(metric["name"], metric["stage"], True)]
        median = statistics.median(before)
        assert metric["previous"]["steps"] == 50
        assert metric["previous"]["mean"] == pytest.approx(statistics.fmean(before))
        assert metric["previous"]["median"] == pytest.approx(median)
        assert metric["previous"]["mad"] == pytest.approx(statistics.median(abs(value - median) for value in before))


def test_where_no_host_is_to_blame_none_is_named(context_of, demo):
    assert context_of(demo, 50).body["resources"]["host"] is None
    assert context_of(demo, 160).body["resources"]["host"] is None


def test_the_whole_shape(context_of, demo):
    body = context_of(demo, 137).body
    assert list(body) == [
        *("run_id", "step", "attempt", "attempts", "time", "summary", "total_steps", "stages", "ranks"),
        *("missing_ranks", "metrics", "nonfinite", "errors", "logs", "samples", "longest", "scores", "anomalies"),
        *("stragglers", "clock_skew", "resources", "completeness", "links"),
    ]
    first, last = "2026-03-01T16:28:00.000000316Z", "2026-03-01T16:28:06.849999897Z"
    assert body["time"] == {"first": first, "last": last, "estimated": False}
    assert list(metric_of(body, "kl_divergence")) == [
        *("name", "stage", "unit", "mean", "std", "min", "max", "n", "weight", "worst_rank", "values", "previous")
    ]
    assert list(metric_of(body, "kl_divergence")["previous"]) == ["steps", "mean", "median", "mad", "z"]
    assert body["nonfinite"] == [{"metric": "reward_mean", "rank": 5, "stage": "reward", "kind": "nan"}]
    assert metric_of(body, "reward_mean")["n"] == 7
    assert body["completeness"]["flagged"] == 1
    assert body["links"] == {"page": None, "kibana": None, "grafana": None}
    durations = {stage["stage"]: stage["metric"] for stage in body["stages"]}
    assert list(durations) == ["rollout", "reward", "critic", "actor", "trainer", "system"]
    assert durations["rollout"] == "rollout/latency_ms" and durations["reward"] is None
