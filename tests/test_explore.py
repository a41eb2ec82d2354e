"""The commands that look around in a run: why, series, compare, samples."""

import json

import pytest

from tests.documents import line, record, run_of, sample


def test_why_says_the_verdict_first_and_what_to_do(ask, demo):
    rows = ask("why", demo).out.splitlines()
    assert rows[0].startswith("ask-demo \u00b7 step 240 \u00b7 attempt 2 \u00b7 ended \u00b7 last record ")
    assert rows[0].endswith(" ago \u00b7 abnormal since step 156")
    assert rows[1].startswith("!  Began at step 156 (2026-03-01 16:31:48 UTC): KL 0.0228 nats is")
    shown = "\n".join(rows)
    for words in (
        "first action ",
        "last healthy checkpoint  none is in the logs",
        "170\u2013180  Rank 6 (train-node-02)",
        "\n156\u2013240    KL 0.0228 nats is",  # its own steps, though 155 is the first of the episode
        "\n128        KL 0.0204 nats is",
    ):
        assert words in shown
    assert rows[-1] == "looked at steps 1 to 240 \u00b7 clock of train-node-02 +0.35 s"


def test_why_prints_json_and_nothing_else(ask, write):
    saved = line("why-json", 195, "local_global_step_folder: /ckpt/a b/global_step_19", step=19)
    late = line("why-json", 205, "Saving checkpoint to /ckpt/global_step_20", step=20)
    died = line("why-json", 205, "torch.OutOfMemoryError: CUDA out of memory.", step=20, rank=1, level="error")
    write([*run_of("why-json", 19), saved, late, died])
    body = json.loads(ask("why", "why-json", "--json").out)
    assert list(body) == [
        *("run_id", "severity", "verdict", "sentences", "exit", "step", "total_steps", "attempt", "age_s", "last"),
        *("note", "began", "cause", "first_error", "then", "episodes", "earlier_attempts", "checkpoint", "resume"),
        *("todo", "looked_at", "clock_skew"),
    ]
    assert body["first_error"]["ranks"] == [1] and body["first_error"]["host"] == "node-0"
    assert body["checkpoint"]["step"] == 19
    assert "trainer.resume_from_path" in ask("why", "why-json").out


def test_series_are_plotted(ask, demo):
    rows = ask("series", demo, "kl_ref", "entropy").out.splitlines()
    assert rows[0] == demo
    assert max(map(len, rows)) <= 100
    assert rows[-2].split() == ["kl_divergence", "(nats)", "1-240", "0.0115", "0.114", "0.00796", "0.12"]


def test_series_of_ranks_as_csv(ask, demo):
    rows = ask("series", demo, "kl_divergence", "--by", "rank", "--steps", "127..129", "--csv").out.splitlines()
    assert rows[0] == "step," + ",".join(f"kl_divergence rank {rank}" for rank in range(8))
    at, *values = rows[2].split(",")
    assert at == "128" and max(map(float, values)) == float(values[3]) > 0.08
    assert len(rows) == 4


def test_a_series_has_each_step_once_from_its_newest_attempt(ask, demo):
    body = json.loads(ask("series", demo, "kl_ref", "--steps", "195..210", "--json").out)
    [series] = body["series"]
    assert (body["run_id"], series["metric"], series["rank"]) == (demo, "kl_divergence", None)
    assert [at for at, _ in series["points"]] == list(range(195, 211))
    contexts = {at: json.loads(ask("step", demo, str(at), "--json").out) for at in (199, 203)}
    for at, context in contexts.items():
        [metric] = [metric for metric in context["metrics"] if metric["name"] == "kl_divergence"]
        assert dict(map(tuple, series["points"]))[at] == pytest.approx(metric["mean"])


def test_many_ranks_are_plotted_by_the_farthest(ask, write):
    write(
        record("series-many", step, step=step, rank=rank, stage="actor", metrics={"loss": 9.0 if rank == 17 else 1.0})
        for step in range(1, 4)
        for rank in range(20)
    )
    rows = ask("series", "series-many", "loss", "--by", "rank").out.splitlines()
    assert rows[-1] == "12 more ranks: --csv or --json has them"
    assert any(row.startswith("rank 17 ") for row in rows)


def test_compare_begins_with_the_configuration(ask, write):
    for name, rate, loss in (("compare-a", 1e-6, 1.0), ("compare-b", 2e-6, 3.0)):
        config = {
            "config": {"actor.optim.lr": rate, "trainer.nnodes": 1, **({"seed": 7} if name == "compare-b" else {})}
        }
        write(
            [
                record(name, 0, kind="event", event="config", extra=config),
                *(
                    record(name, step, step=step, stage="trainer", metrics={"loss": loss * step, "KL": 0.01})
                    for step in range(1, 6 if name == "compare-a" else 4)
                ),
            ]
        )
    body = json.loads(ask("compare", "compare-a", "compare-b", "loss", "--json").out)
    assert body["config"] == [
        {"key": "actor.optim.lr", "values": [1e-6, 2e-6]},
        {"key": "seed", "values": ["\u2013", 7]},
    ]
    assert (body["runs"], body["step"]) == (["compare-a", "compare-b"], 3)
    assert [metric["name"] for metric in body["metrics"]] == ["kl_ref", "loss"]
    loss = body["metrics"][1]
    assert (loss["values"], loss["difference"], loss["steps"]) == ([3.0, 9.0], 6.0, 3)
    assert (loss["recent_difference"], loss["largest"]) == (4.0, {"step": 3, "difference": 6.0})
    assert json.loads(ask("compare", "compare-a", "compare-b", "loss", "--at", "1", "--json").out)["step"] == 1
    rows = ask("compare", "compare-a", "compare-b").out.splitlines()
    assert rows[0].split() == ["configuration", "compare-a", "compare-b"]
    assert rows[4].split()[:4] == ["step", "3", "compare-a", "compare-b"]


def test_samples_of_a_step(ask, write):
    write(
        [
            *run_of("sampled", 2),
            *(
                sample(
                    "sampled", 25, 2, score / 10, output=f"answer {score}\x1b[2J", output_length=score, prompt_id="p1"
                )
                for score in range(8)
            ),
            sample("sampled", 15, 1, 0.5, input="What is 1+1?", output="2", prompt_id="p1"),
        ]
    )
    lowest = [json.loads(row) for row in ask("samples", "sampled", "2", "--lowest", "2", "--json").out.splitlines()]
    assert [(entry["step"], entry["score"]) for entry in lowest] == [(2, 0.0), (2, 0.1)]
    longest = ask("samples", "sampled", "2", "--longest", "1").out
    assert longest.splitlines()[0].startswith("score 0.7 \u00b7 split train \u00b7 prompt_id p1")
    assert "answer 7\ufffd[2J" in longest and "\x1b" not in longest
    found = ask("samples", "sampled", "last", "--highest", "1", "--grep", "ANSWER 3", "--json")
    assert json.loads(found.out)["score"] == 0.3
    rows = ask("samples", "sampled", "--prompt", "p1").out.splitlines()
    assert rows[0] == "prompt   What is 1+1?"
    assert rows[3].split() == ["1", "0.5", "\u2013", "2"]
    assert len(rows) == 3 + 9


def test_a_step_without_samples_names_the_nearest_that_have_some(ask, write):
    write([*run_of("gaps", 9), *(sample("gaps", 100 + step, step, 0.5) for step in (1, 2, 6, 8))])
    without = "error: Step {} of run 'gaps' has no samples; the nearest that {}.\n"
    assert ask("samples", "gaps", "4").err == without.format(4, "have some: 2 and 6")
    assert ask("samples", "gaps", "9").err == without.format(9, "has some: 8")


def test_the_case_of_a_catalogues_metric_does_not_matter(ask, demo):
    found = ask("series", demo, "kl", "--json")
    assert (found.code, found.out) == (0, ask("series", demo, "KL", "--json").out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["why", "ask-dem0"], "error: There is no run 'ask-dem0'; did you mean ask-demo"),
        (["series", "ask-demo", "no_such"], "error: Run 'ask-demo' has no metric no_such"),
        (
            ["series", "ask-demo", "kl_ref", "--steps", "300..310"],
            "error: Run 'ask-demo' has no kl_divergence in steps",
        ),
        (["series", "ask-demo", "kl_ref", "--by", "host"], "error: --by host: only rank is known; write --by rank."),
        (["series", "ask-demo", "kl_ref", "entropy", "--by", "rank"], "error: --by rank shows one metric;"),
        (["compare", "ask-demo", "ask-demo", "x"], "error: Neither 'ask-demo' nor 'ask-demo' has the metric x"),
        (["samples", "ask-demo"], "error: samples: say of what; give a step, or --prompt"),
        (["samples", "ask-demo", "5"], "error: Step 5 of run 'ask-demo' has no samples; rollout dumps are where"),
        (["samples", "ask-demo", "--prompt", "x"], "error: Run 'ask-demo' has no sample with the prompt id x;"),
        (["samples", "ask-demo", "5", "--lowest", "1", "--longest", "1"], "error: samples: --lowest, --highest and"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_and_exit_1(ask, demo, words, message):
    outcome = ask(*words)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(message) and outcome.err.count("\n") == 1
