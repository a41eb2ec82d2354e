"""What the context of a step has: its attempt, ranks and values, what it lacks, first errors, samples."""

import pytest

from tests.documents import START, Document, line, metric_of, record, run_of, sample
from verl_ingest.context import narrow, samples
from verl_ingest.errors import NotFound
from verl_ingest.query.times import iso, milliseconds


def test_the_last_step_of_all_is_told_where_the_run_said_it(context_of, write):
    write([*run_of("total", 3), line("total", 0, "Total steps: 300, num_warmup_steps: 0")])
    assert context_of("total", 2).body["total_steps"] == 300
    write(run_of("endless", 3))
    assert context_of("endless", 2).body["total_steps"] is None


def test_an_error_without_a_rank_is_told_by_its_processes(context_of, write):
    alike = {"error.type": "E", "error.message": "boom", "error.fingerprint": "f"}
    errors = [line("nowhere", 25, "", step=2, pid=pid, **alike) for pid in (77, 78)]
    write([*run_of("nowhere", 3), *errors])
    body = context_of("nowhere", 2).body
    assert body["summary"][0] == "First error on pids 77, 78: E: boom."
    assert [(error["pids"], error["count"]) for error in body["errors"]] == [([77, 78], 2)]


def test_times_that_no_line_has_are_called_estimated(context_of, write):
    write([document | {"time_source": "estimated"} for document in run_of("undated", 3)])
    assert context_of("undated", 2).body["time"]["estimated"]


def test_a_step_that_is_not_there(context_of, demo):
    with pytest.raises(NotFound, match="Run 'ask-demo' has no step 500; the nearest is 240"):
        context_of(demo, 500)


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
