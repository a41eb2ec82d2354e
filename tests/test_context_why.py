"""Why a run is as it is: each fault planted in the demo and in the samples is named, a healthy run says so."""

from pathlib import Path

import pytest

from tests import demo_store
from tests.documents import START, Document, line, record, replaced, run_of
from verl_ingest.catalog import metrics
from verl_ingest.context import why
from verl_ingest.context.why import Why

RUNS = Path(__file__).parent / "data" / "runs"  # excerpts of real runs, metrics left out
NOW = demo_store.LONG_AFTER


@pytest.fixture
def explain(store):
    def explain_run(run_id: str, *, now: int = NOW) -> Why:
        with store.open(run_id) as run:
            return why.explain(run, catalogue=metrics.load(), now=now)

    return explain_run


@pytest.fixture(scope="module")
def of_demo(store, demo_with_console) -> Why:
    with store.open(demo_with_console) as run:
        return why.explain(run, catalogue=metrics.load(), now=NOW)


@pytest.fixture(scope="module")
def of_grpo(templated, store) -> Why:
    run_id = demo_store.load(templated, "why-grpo", RUNS / "grpo")
    with store.open(run_id) as run:
        return why.explain(run, catalogue=metrics.load(), now=NOW)


@pytest.fixture(scope="module")
def of_crash(templated, store) -> Why:
    run_id = demo_store.load(templated, "why-crash", RUNS / "oom-crash")
    with store.open(run_id) as run:
        return why.explain(run, catalogue=metrics.load(), now=NOW)


def told(found: Why, first: int, last: int) -> str:
    """Return what is said of the events that began in these steps."""
    return " ".join(
        finding.sentence
        for episode in found.episodes
        for event in episode.events
        if first <= event.first <= last
        for finding in (event.finding, *event.others)
    )


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (61, ["The step took 57 s"]),
        (88, ["critic_loss 0.491 is over 100 sigma above"]),
        (128, ["KL", "rank 3 alone drives it"]),
        (137, ["reward_mean of rank 5 is NaN"]),
        (155, ["Zero gradients", "KL is 93.4 % of the loss"]),
        (156, ["KL 0.0228 nats is 5.1 sigma above"]),
        (160, ["system/disk_io_wait_ms", "rollout/latency_ms", "gpu/utilization_pct"]),
        (170, ["Rank 6 (train-node-02) is a straggler"]),
        (190, ["rollout/empty_response_ratio"]),
        (199, ["First error on rank 3: CUDA OOM", "then rank 5: NCCL error"]),
    ],
)
def test_why_names_each_fault_of_the_demo(of_demo, step, words):
    sentences = told(of_demo, step, step)
    assert [word for word in words if word not in sentences] == []


def test_why_says_what_the_demo_ended_in(of_demo):
    body = of_demo.entry()
    assert (body["severity"], body["verdict"], body["attempt"]) == ("critical", "abnormal since step 156", 2)
    assert body["sentences"][0].startswith("Began at step 156 (2026-03-01 16:31:44 UTC): KL 0.0228 nats is")
    assert body["sentences"][0].endswith("At step 240 it is 0.114 nats.")
    assert body["sentences"][1].startswith(
        "Also: gradients are zero on rank 0 in steps 155\u2013156, GPU out of memory on rank 3 at step 199, clip"
    )
    assert body["sentences"][2] == "Attempt 1 ended at step 205, without rank 7."
    assert body["todo"].startswith("Read samples from before and after the rise")
    assert (body["checkpoint"], body["resume"]) == (None, None)
    assert body["clock_skew"] == {"train-node-02": 0.35}
    assert body["exit"]["state"] == "ended" and body["exit"]["alive"] is None


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (200, 203, ["KL 0.004", "sigma above"]),
        (231, 245, ["critic/score/mean", "sigma below"]),
        (236, 236, ["actor/grad_norm is infinite"]),
        (260, 260, ["critic/score/mean", "are NaN", "response/aborted_ratio is 1"]),
    ],
)
def test_why_names_each_fault_of_a_default_run(of_grpo, first, last, words):
    sentences = told(of_grpo, first, last)
    assert [word for word in words if word not in sentences] == []


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (210, ["KL", "sigma above"]),
        (236, ["actor/grad_norm is infinite."]),
        (237, ["actor/grad_norm is NaN."]),
        (238, ["actor/kl_loss is infinite."]),
        (244, ["critic/score/mean", "sigma below"]),
        (260, ["critic/score/mean", "are NaN.", "response/aborted_ratio is 1;"]),
    ],
)
def test_the_steps_of_a_default_run_name_their_faults(context_of, of_grpo, step, words):
    summary = " ".join(context_of("why-grpo", step).body["summary"])
    assert [word for word in words if word not in summary] == []


def test_a_healthy_step_of_a_default_run_is_normal(context_of, of_grpo):
    assert context_of("why-grpo", 175).body["summary"] == [
        "Step 175 is normal: 7 metrics are as in the 25 steps before."
    ]


def test_the_step_of_the_crash_names_it(context_of, of_crash):
    summary = context_of("why-crash", 12).body["summary"]
    assert summary[0].startswith("First error on pids 10586, 10655: torch.OutOfMemoryError: CUDA out of memory.")


def test_why_of_a_default_run_knows_where_to_go_back_to(of_grpo):
    body = of_grpo.entry()
    assert body["exit"]["state"] == "finished"
    assert 200 < body["began"]["step"] <= 203 and body["cause"]["metrics"] == ["actor/kl_loss"]
    assert (body["checkpoint"]["step"], body["checkpoint"]["path"]) == (200, "/data/runs/grpo-A/ckpt/global_step_200")
    assert body["resume"] == (
        "trainer.resume_mode=resume_path trainer.resume_from_path=/data/runs/grpo-A/ckpt/global_step_200"
    )


def test_why_names_the_crash(of_crash):
    body = of_crash.entry()
    assert (body["severity"], body["verdict"], body["step"], body["total_steps"]) == ("critical", "crashed", 11, 300)
    assert body["exit"]["reason"] == "gpu_out_of_memory" and body["exit"]["alive"] is False
    assert "First error on pids 10586, 10655: torch.OutOfMemoryError: CUDA out of memory." in body["sentences"][1]
    assert body["began"]["step"] == 12
    assert body["first_error"]["gpu"] == 3
    assert body["first_error"]["frames"][-1].startswith('File "/opt/train/simworkers.py", line 63')
    assert "micro batch" in body["todo"]


def test_a_healthy_run_says_so(explain, write):
    write(run_of("why-healthy", 40))
    body = explain("why-healthy", now=START + 405_000).entry()
    assert (body["severity"], body["verdict"]) == ("normal", "normal")
    assert body["sentences"] == ["Nothing is abnormal in steps 1 to 40."]
    assert (body["todo"], body["began"], body["cause"]) == (None, None, None)
    assert body["exit"] == {
        "state": "running",
        "reason": None,
        "alive": True,
        "sentence": "Running: its last record is 1.0 s old.",
    }


def test_times_in_the_future_are_said_and_no_age_is_made_of_them(explain, write):
    write(run_of("why-ahead", 40))
    body = explain("why-ahead", now=START - 27_060_000).entry()
    assert (body["exit"]["state"], body["age_s"], body["note"]) == (
        "unknown",
        None,
        "times lie 7 h 37 min in the future; set timezone",
    )
    assert body["sentences"][0] == f"Nothing tells whether it runs: {body['note']}."


def test_too_few_steps_are_said(explain, write):
    write(run_of("why-young", 5))
    body = explain("why-young", now=START + 55_000).entry()
    assert (body["severity"], body["verdict"]) == ("unknown", "too few steps to judge by")
    assert body["sentences"] == ["5 steps are there; 10 are needed to know what is usual."]


@pytest.mark.parametrize(
    ("faults", "severity", "step_severity"),
    [
        ({"metrics": {"kl_divergence": 0.9}}, "warning", "abnormal"),
        ({"metrics": {}, "nonfinite": ["kl_divergence"], "flags": ["nan:kl_divergence"]}, "critical", "critical"),
    ],
)
def test_a_run_is_as_bad_as_the_step_it_is_in(explain, view_of, write, faults, severity, step_severity):
    name = f"why-as-bad-{severity}"
    write(replaced(run_of(name, 40), {"step": 40, "stage": "reward"}, **faults))
    assert explain(name, now=START + 405_000).severity == severity
    assert view_of(name, 40).severity == step_severity


def test_what_one_rank_alone_drives_is_looked_for_on_that_rank(explain, write):
    at = {"step": 40, "stage": "reward", "rank": 2}
    write(replaced(run_of("why-alone", 40), at, metrics={"kl_divergence": 0.9}))
    body = explain("why-alone", now=START + 405_000).entry()
    assert "rank 2 alone drives it" in body["sentences"][0]
    assert body["todo"].startswith("Look at rank 2: its batch and samples, its GPU and host; `verl-ingest series why-")


def test_a_run_that_recovered_is_normal_and_says_what_was(explain, write):
    write(replaced(run_of("why-recovered", 45), {"step": 25, "stage": "reward"}, metrics={"kl_divergence": 0.9}))
    body = explain("why-recovered", now=START + 455_000).entry()
    assert (body["severity"], body["verdict"]) == ("normal", "normal")
    [sentence] = body["sentences"]
    assert sentence.startswith("Normal since step 26; last abnormal was step 25: KL 0.9 nats is")
    assert [(episode["first"], episode["last"]) for episode in body["episodes"]] == [(25, 25)]


def test_a_silent_run_is_critical_and_says_how_long(explain, write):
    write(run_of("why-silent", 40))
    body = explain("why-silent", now=START + 404_000 + 600_000).entry()
    assert (body["severity"], body["verdict"]) == ("critical", "stalled")
    assert body["sentences"][0].startswith("Silent after step 40, for 10 min, where a step took 10 s, without an error")
    assert "py-spy" in body["todo"]


def test_a_silent_run_is_not_blamed_on_what_was_over(explain, write):
    at_90 = {"step": 90, "stage": "reward"}
    write(replaced(run_of("why-hangs", 95), at_90, metrics={"kl_divergence": 0.9}))
    found = explain("why-hangs", now=START + 954_000 + 600_000)
    body = found.entry()
    assert (body["verdict"], body["began"], found.first_bad) == ("stalled", None, 90)
    assert body["sentences"][0].startswith("Silent after step 95")
    assert body["sentences"][1].startswith("Normal since step 91; last abnormal was step 90: KL")
    assert "py-spy" in body["todo"]


def test_a_silent_run_that_was_bad_to_its_end_says_both(explain, write):
    write(replaced(run_of("why-hangs-bad", 95), {"step": 95, "stage": "reward"}, metrics={"kl_divergence": 0.9}))
    body = explain("why-hangs-bad", now=START + 954_000 + 600_000).entry()
    assert (body["verdict"], body["began"]["step"]) == ("stalled", 95)
    assert "py-spy" in body["todo"]


def test_a_crash_before_the_first_step(explain, write):
    write([line("why-stillborn", 0, "No space left on device", level="error")])
    body = explain("why-stillborn").entry()
    assert body["verdict"] == "crashed" and body["exit"]["reason"] == "disk_full"
    assert body["sentences"] == [
        f"Crashed before its first step, {body['exit']['sentence'].split(', ')[1]}",
        "First error: No space left on device.",
    ]


def test_a_crash_after_a_drift_tells_both(explain, write):
    documents = [
        document | {"metrics": {"kl_divergence": 0.5 + document["step"] / 100}}
        if document["step"] > 30 and document["stage"] == "reward"
        else document
        for document in run_of("why-both", 40)
    ]
    died = line("why-both", 412, "Watchdog caught collective operation timeout", step=41, rank=2, level="error")
    write([*documents, died, record("why-both", 1, kind="event", event="config", extra={"world_size": 4})])
    body = explain("why-both").entry()
    assert body["exit"]["reason"] == "communication"
    assert body["sentences"][1].startswith("Began at step 41")
    assert body["sentences"][2] == "Also: kl_divergence from step 31."


def test_a_rank_that_stays_silent_is_what_is_wrong(explain, write):
    write([document for document in run_of("why-lost", 60) if document["rank"] != 2 or document["step"] < 25])
    body = explain("why-lost", now=START + 605_000).entry()
    assert (body["severity"], body["verdict"]) == ("critical", "abnormal since step 25")
    assert "Rank 2 is missing in reward and rollout" in body["sentences"][0]
    assert body["cause"]["last"] == 60
    assert "process and its host are alive" in body["todo"]


def test_a_rank_that_came_back_is_over(explain, write):
    write([document for document in run_of("why-back", 60) if document["rank"] != 2 or document["step"] != 25])
    body = explain("why-back", now=START + 605_000).entry()
    assert body["verdict"] == "normal"
    assert body["sentences"][0].startswith("Normal since step 26; last abnormal was step 25: Rank 2 is missing")


def drive(run: str, steps: int, *, high_from: int | None = None, high_at: tuple[int, ...] = ()) -> list[Document]:
    """A run of which only the driver logs: KL that varies a little, high at some steps, or from one on."""
    values = {step: 0.01 + 0.0001 * (7 * step % 5) for step in range(1, steps + 1)}
    high = {step for step in values if step in high_at or (high_from is not None and step >= high_from)}
    return [
        record(run, step, step=step, stage="trainer", metrics={"KL": value + (0.9 if step in high else 0.0)})
        for step, value in values.items()
    ]


def test_a_long_run_is_looked_at_from_its_end(explain, write):
    write(drive("why-long", 720, high_at=(60, 600)))
    body = explain("why-long", now=START + 721_000).entry()
    assert body["looked_at"] == {"first": 221, "last": 720}
    assert [episode["first"] for episode in body["episodes"]] == [600]


def test_what_a_metric_is_now_is_that_of_the_newest_step(explain, write):
    """Lines that were read at once, and have no times of their own, do not say which step came last."""
    write(
        {
            **each,
            "@timestamp": f"2026-05-28T20:26:40.{(each['step'] + 80) % 117:09}Z",
            "time_source": "read",
        }
        for each in drive("why-undated", 117, high_from=90)
    )
    said = " ".join(explain("why-undated").entry()["sentences"])
    assert "Began at step 90" in said
    assert "At step 117 it is" in said


def test_an_episode_is_followed_back_to_where_it_began(explain, write):
    write(drive("why-drift", 720, high_from=110))
    body = explain("why-drift", now=START + 721_000).entry()
    assert (body["looked_at"]["first"], body["began"]["step"]) == (21, 110)
