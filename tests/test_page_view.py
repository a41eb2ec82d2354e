"""What the page of a step says: each planted fault on its first screen, normal where nothing is wrong."""

from dataclasses import replace

import pytest

from tests.documents import line, record, sample
from tests.pages import Page
from verl_ingest.catalog import metrics
from verl_ingest.context.findings import Finding
from verl_ingest.serve.page import heat, ranks, render
from verl_ingest.serve.page.ranks import Place

HOSTS = 64
RANKS = 512


def first_screen(view) -> str:
    """Return the words of the page above its charts."""
    html = render.step_html(view)
    return Page(html[html.index("<main>") : html.index('id="charts"')]).text


@pytest.mark.parametrize(
    ("number", "severity", "words"),
    [
        (61, "abnormal", ["The step took 57 s"]),
        (88, "abnormal", ["critic_loss 0.491"]),
        (128, "abnormal", ["KL 0.0204 nats", "rank 3 alone drives it", "rank 3 kl_divergence 0.0816 nats"]),
        (137, "critical", ["reward_mean of rank 5 is NaN", "NaN on rank 5", "rank 5 reward_mean is NaN"]),
        (155, "abnormal", ["Zero gradients detected", "KL is 93.4 % of the loss"]),
        (162, "abnormal", ["rollout/latency_ms", "gpu/utilization_pct", "system/disk_io_wait_ms"]),
        (175, "abnormal", ["Rank 6 (train-node-02) is a straggler", "times the median"]),
        (191, "abnormal", ["rollout/empty_response_ratio"]),
        (199, "critical", ["rank 3", "CUDA OOM during critic forward", "loss.backward()", "then rank 5: NCCL error"]),
        (204, "abnormal", ["above its alarm limit 0.05", "Same step, attempt 1", "without rank 7"]),
        (240, "abnormal", ["entropy", "below its alarm limit 1.2"]),
    ],
)  # fmt: skip
def test_planted_faults_are_on_the_first_screen(view_of, demo_with_console, number, severity, words):
    view = view_of(demo_with_console, number)
    text = first_screen(view)
    assert [word for word in words if word not in text] == []
    assert view.severity == severity


def test_what_one_rank_alone_drives_is_looked_for_on_that_rank(view_of, demo):
    action = view_of(demo, 128).action
    assert action.sentence == (
        "Look at rank 3: its batch and samples, its GPU and host; "
        f"`verl-ingest series {demo} kl_divergence --by rank` compares it."
    )
    assert action.causes == ()
    assert view_of(demo, 156).action.sentence.startswith("Read samples from before and after the rise")


def test_a_healthy_step_says_normal(view_of, demo):
    view = view_of(demo, 100)
    text = first_screen(view)
    assert view.severity == "normal"
    assert text.startswith("✓ Normal ask-demo step 100")
    assert "Step 100 is normal: 23 metrics on 8 ranks" in text
    assert "Do first" not in text and "First error" not in text
    assert not any(row.abnormal for row in view.golden)


def test_at_most_five_metrics_are_called_abnormal(view_of, demo):
    for number in (162, 175, 205, 240):
        view = view_of(demo, number)
        assert 0 < sum(row.named for row in view.metrics) <= 5


def test_golden_six_have_value_usual_range_z_and_line(view_of, demo):
    view = view_of(demo, 128)
    kl = view.golden[0]
    assert (kl.title, kl.value, kl.unit, kl.word) == ("KL to reference", "0.0204", "nats", "high")
    assert kl.z.startswith("+4.") and kl.usual.startswith("0.009")
    assert len(view.golden) == 6
    reward = view.golden[2]
    assert len(reward.spark.nan) == 1  # step 137
    assert reward.spark.path.count("L") == 100


def test_first_error_has_rank_host_process_and_frames(view_of, demo_with_console):
    error = view_of(demo_with_console, 199).error
    assert (error.who, error.where) == ("rank 3", "train-node-01, pid 4103")
    assert error.frames[-1].endswith("loss.backward()")
    assert error.then == ("rank 5: NCCL error",)


def test_trust_says_completeness_and_skew(view_of, demo):
    assert view_of(demo, 128).trust[:2] == ("94 of 94 metric records", "0 flagged")
    assert view_of(demo, 128).trust[-1] == "clock of train-node-02 +350 ms, corrected"


def test_missing_ranks_are_shown_in_their_attempt(view_of, write):
    run = "page-missing"
    write(
        record(
            run, at, step=at, rank=rank, stage="actor", pid=rank + 1, host=f"node-{rank // 2}", metrics={"loss": 0.5}
        )
        for at in range(20)
        for rank in range(4)
        if (at, rank) != (19, 3)
    )
    view = view_of(run, 19)
    assert view.ranks.missing == "3"
    assert [cell.state for host in view.ranks.hosts for cell in host.cells if cell.rank == 3] == ["missing"]
    assert view.severity == "critical"


def test_an_early_step_says_so(view_of, write):
    write([record("page-early", at, step=at, rank=0, pid=1, metrics={"kl_divergence": 0.01}) for at in range(3)])
    view = view_of("page-early", 2)
    assert (view.severity, view.word) == ("unknown", "Too early to say")
    assert "are needed" in first_screen(view)
    assert view.golden[0].usual == view.golden[0].word == "no history"


def test_a_step_with_samples_only_is_explained(view_of, write):
    write([sample("page-samples", at, 5, 0.5 + at, output="hello", output_length=5) for at in range(3)])
    text = Page(render.step_html(view_of("page-samples", 5))).text
    expected = (
        "No record of this step names a rank",
        "No stage logged how long it took",
        "The step logged no metrics",
        "No log line carries this step",
    )
    assert [words for words in (*expected, "first step", "last step") if words not in text] == []


def test_scores_now_and_before(view_of, write):
    run = "page-scores"
    write(record(run, at, step=at, rank=0, pid=1, metrics={"kl_divergence": 0.01}) for at in range(4))
    write(
        sample(run, at, at, score, output="yes", output_length=3) for at in range(3) for score in (0.0, 1.0, 1.0, 1.0)
    )
    write(
        [
            sample(run, 3, 3, 0.0, output="", output_length=0),
            sample(run, 3, 3, 0.0, output="no", output_length=2),
            sample(run, 3, 3, 1.0, output="yes", output_length=3),
        ]
    )
    view = view_of(run, 3)
    chart = view.scores
    assert (chart.n, chart.n_before, chart.empty, chart.mean_before) == (3, 12, 1, "0.75")
    assert [chart.bins[0].now, chart.bins[-1].now] == pytest.approx([2 / 3, 1 / 3])
    assert [chart.bins[0].before, chart.bins[-1].before] == pytest.approx([1 / 4, 3 / 4])
    assert [sample.line for sample in view.samples[:2]] == ["(empty)", "no"]
    assert "1 empty" in first_screen(view)


def test_equal_scores_are_one_bin(view_of, write):
    write([sample("page-equal", at, 5, 1.0, output="x", output_length=1) for at in range(3)])
    chart = view_of("page-equal", 5).scores
    assert [each.now for each in chart.bins] == [1.0, *([0.0] * 9)]
    assert chart.n_before == 0


def test_log_lines_leave_out_what_a_stack_holds(view_of, demo_with_console):
    view = view_of(demo_with_console, 199)
    stacks = [line.stack for line in view.lines.lines if line.stack]
    assert any("torch.OutOfMemoryError" in stack for stack in stacks)
    assert not any(line.message.strip().startswith("File ") for line in view.lines.lines)


def test_of_many_lines_the_worst_are_kept(view_of, write):
    run = "page-lines"
    write([record(run, 0, step=1, rank=0, pid=1, metrics={"kl_divergence": 0.01})])
    write(line(run, number / 100, f"line {number}", step=1, level="info", rank=0) for number in range(400))
    write([line(run, 5, "the end is near", step=1, level="warning", rank=0)])
    lines = view_of(run, 1).lines
    assert (len(lines.lines), lines.left_out) == (250, 151)
    assert lines.lines[-1].message == "the end is near"


def test_512_ranks_stay_light(view_of, demo):
    where = {rank: Place(host=f"node-{rank // 8:02}", pid=rank) for rank in range(RANKS)}
    body = {
        "ranks": [rank for rank in range(RANKS) if rank != 77],
        "missing_ranks": {"actor": [77]},
        "errors": [{"kind": "communication", "ranks": list(range(RANKS))}],
        "nonfinite": [{"metric": "grad_norm", "rank": 200, "stage": "actor", "kind": "nan"}],
        "stragglers": [],
        "metrics": [
            {
                "name": f"metric_{number}",
                "unit": "",
                "values": {str(rank): 1 + (rank * 7919 % 101) / 100 + 40 * (rank == 300) for rank in range(RANKS)},
            }
            for number in range(40)
        ],
    }
    strip = ranks.strip(body, [Finding("metric_0 is far.", metrics=("metric_0",), rank=300)], where)
    assert [worst.rank for worst in strip.worst] == [200, 300]
    assert strip.missing == "77"
    assert len(strip.hosts) == 6 and strip.others == "58 more hosts with 464 ranks, none of them stands out"
    shown = {cell.rank for host in strip.hosts for cell in host.cells if cell.state != "fine"}
    assert shown == {77, 200, 300}

    found = heat.draw(body["metrics"], where, metrics.load())
    assert (len(found.columns), found.folded, len(found.lines), found.left_out) == (HOSTS, True, 20, 20)
    assert all([spot.column for spot in each.spots] == [300 // 8] for each in found.lines)
    view = view_of(demo, 128)
    light, heavy = (len(render.step_html(each)) for each in (view, replace(view, ranks=strip, heat=found)))
    assert heavy < light + 30_000


def test_ranks_that_fell_with_others_are_named_while_they_are_few(view_of, demo_with_console):
    worst = view_of(demo_with_console, 199).ranks.worst
    assert [(rank.rank, rank.reason) for rank in worst] == [(3, "GPU out of memory"), (5, "NCCL error")]


def test_heat_map_names_the_rank(view_of, demo):
    found = view_of(demo, 128).heat
    assert found.lines[0].name == "kl_divergence"
    [spot] = found.lines[0].spots
    assert (found.columns[spot.column], spot.side, spot.strength) == ("3", "above", 2)
    assert "rank 3: 0.0816 nats" in spot.words


def test_heat_map_needs_three_ranks():
    assert heat.draw([{"name": "loss", "unit": "", "values": {"0": 1.0, "1": 9.0}}], {}, metrics.load()) is None
