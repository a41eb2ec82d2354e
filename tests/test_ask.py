import json
import os
import subprocess
import sys
import threading

import pytest

from tests.command import Outcome
from tests.documents import line, record, sample
from verl_ingest.query import elastic


def test_step_prints_the_context(ask, demo):
    outcome = ask("step", demo, "128")
    assert outcome.code == 0 and outcome.err == ""
    assert "rank 3 alone drives it (0.0816)." in outcome.out.splitlines()[1]


def test_step_prints_json_and_nothing_else(ask, demo):
    outcome = ask("step", demo, "128", "--json")
    body = json.loads(outcome.out)
    assert outcome.err == ""
    assert (body["run_id"], body["step"], body["attempt"]) == (demo, 128, 1)
    assert list(body)[:6] == ["run_id", "step", "attempt", "attempts", "time", "summary"]


@pytest.mark.parametrize(("word", "number"), [("last", 240), ("-1", 240), ("-41", 200), ("first-bad", 156)])
def test_step_takes_names_and_counts_from_the_end(ask, demo, word, number):
    assert json.loads(ask("step", demo, word, "--json").out)["step"] == number


def test_step_takes_a_beginning_a_stage_a_rank_and_a_window(ask, demo):
    body = json.loads(ask("step", demo[:-1], "128", "--stage", "reward", "--rank", "3", "--window", "20", "--json").out)
    assert {metric["stage"] for metric in body["metrics"]} == {"reward"}
    assert {metric["previous"]["steps"] for metric in body["metrics"]} == {20}
    assert body["ranks"] == [3]
    assert "rank 3" in ask("step", demo, "128", "--rank", "3").out.splitlines()[3]


def test_a_command_in_what_step_says_is_as_it_would_be_typed(ask, write, tmp_path):
    metrics = [(step, rank) for step in range(1, 16) for rank in range(4) if (step, rank) != (15, 2)]
    write(record("ask-lost", step, step=step, rank=rank, stage="actor", metrics={"kl": 0.1}) for step, rank in metrics)
    (tmp_path / "cluster.yml").write_text("{}")
    file = str(tmp_path / "cluster.yml")
    said = f"Rank 2 is missing in actor, seen in the steps before; `verl-ingest --settings {file} audit PATH` tells"
    assert ask("--settings", file, "step", "ask-lost", "15").out.splitlines()[1].startswith(f"!  {said}")
    assert json.loads(ask("--settings", file, "step", "ask-lost", "15", "--json").out)["summary"][0].startswith(said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["step", "ask-dem0", "1"], "error: There is no run 'ask-dem0'; did you mean ask-demo"),
        (["step", "ask-demo", "500"], "error: Run 'ask-demo' has no step 500; the nearest is 240."),
        (["step", "ask-demo", "x"], "error: 'x' is not a step;"),
        (
            ["step", "ask-demo", "16:26"],
            "error: '16:26' is not a step; write a number, last, -2 (from the end), first-bad, or a time such as 2026",
        ),
        (["step", "ask-demo", "9", "--rank", "77"], "error: Step 9 of run 'ask-demo' has no rank 77;"),
        (["share", "reward", "--run", "ask-demo"], "error: 'reward' is not a condition;"),
        (["share", "reward < 1", "--run", "ask-demo"], "error: No sample of run 'ask-demo' has a score; other"),
        (["share", "reward < 1", "--last", "long"], "error: 'long' is not a duration;"),
        (["share", "reward < 1", "--until", "noon"], "error: 'noon' is not a time;"),
        (["logs", "ask-demo", "--level", "loud"], "error: 'loud' is not a level;"),
        (["logs", "ask-demo", "--grep", "no such text"], "No line of run ask-demo matches."),
    ],
)
def test_what_cannot_be_answered_is_one_sentence_and_exit_1(ask, demo, words, message):
    outcome = ask(*words)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(message) and outcome.err.count("\n") == 1


def test_a_server_that_is_down_is_one_sentence(ask, monkeypatch):
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:9")
    outcome = ask("runs")
    assert outcome.code == 1
    assert outcome.err.startswith("error: Elasticsearch at http://127.0.0.1:9 can't be reached")


def test_runs_lists_runs(ask, demo, write):
    write([record("another", 1, step=1, metrics={"loss": 1.0})])
    [row] = [row.split() for row in ask("runs", "--limit", "1000").out.splitlines() if row.startswith(f"{demo} ")]
    assert row[1] == "ended" and "240" in row
    entries = json.loads(ask("runs", "--json", "--limit", "1000").out)
    assert [entry["state"] for entry in entries if entry["run_id"] == demo] == ["ended"]
    one = ask("runs", "--json", "--limit", "1")
    assert len(json.loads(one.out)) == 1
    assert one.err == "There are more runs; --limit 5 shows up to so many.\n"


def run_of(name, *, bad=()):
    """A run of 60 steps whose reward has collapsed in the bad ones."""
    for step in range(1, 61):
        reward = (0.1 if step in bad else 0.5) + 0.01 * (7 * step % 5)
        yield record(name, 10 * step, step=step, rank=0, stage="reward", metrics={"reward_mean": reward})


def test_runs_says_which_are_pinned_and_since_when_which_are_abnormal(ask, get, write, summarise):
    names = ("ask-bad", "ask-good", "ask-not-summarised")
    write(row for name in names for row in run_of(name, bad=range(55, 61) if name == "ask-bad" else ()))
    write([line("ask-bad", 600, "late", level="info")])
    for name in names[:2]:
        summarise(name)
    assert ask("pin", "ask-good").code == 0
    try:
        entries = {entry["run_id"]: entry for entry in json.loads(ask("runs", "--json", "--limit", "1000").out)}
        shown, page = ask("runs", "--limit", "1000"), get("/runs?limit=1000").text
    finally:
        ask("unpin", "ask-good")
    found = [[entries[name][key] for key in ("abnormal", "abnormal_since", "pinned")] for name in names]
    assert found == [[True, 55, False], [False, None, True], [None, None, False]]
    rows = {row.split()[0]: row.split()[1:] for row in shown.out.splitlines()}
    assert rows["run"][:4] == ["state", "abnormal", "pinned", "step"]
    assert rows["ask-bad"][:4] == ["ended", "since", "55", "60"]
    assert rows["ask-good"][:4] == ["ended", "no", "yes", "60"]
    assert rows["ask-not-summarised"][:3] == ["ended", "\u2013", "60"]
    assert '<td class="bad"><a class="bad" href="/verl/runs/ask-bad/steps/55">since\u00a055</a></td>' in page
    assert '<bdi>ask-good</bdi></a> <span class="muted">pinned</span></th>' in page
    assert "without step summaries the list can't say whether a run is abnormal; `verl-ingest summarize" in shown.err
    assert json.loads(ask("why", "ask-bad", "--json").out)["verdict"] == "abnormal since step 55"


def test_no_runs_are_a_sentence(ask, templated, monkeypatch):
    monkeypatch.setattr(elastic, "ALL_PATTERN", "verl-none-*")
    assert ask("runs") == Outcome(0, "There are no runs yet; `verl-ingest load PATH` brings in the logs of one.\n", "")


def test_a_pipe_gets_whole_sentences_and_no_spaces_at_the_end(ask, write):
    error = "one error " * 15 + "end"
    write([record("piped", 1, step=1, metrics={"loss": 1.0}), line("piped", 2, error, step=1, level="error")])
    rows = ask("step", "piped", "1").out.splitlines()
    assert rows[1] == f"!  First error: {error}."
    assert not [row for row in rows if row != row.rstrip()]
    assert not [row for row in ask("runs").out.splitlines() if row != row.rstrip()]


def test_share_counts_back_from_the_last_value_of_a_run(ask, demo):
    outcome = ask("share", "kl_divergence > 0.05", "--last", "10m", "--run", demo)
    assert outcome.out == (
        "100 % of 328 records have kl_divergence > 0.05: 328. "
        "Window of run ask-demo: 2026-03-01T16:44:50 to 2026-03-01T16:54:50 UTC (its last record).\n"
    )
    before = json.loads(
        ask("share", "kl_ref > 0.05", "--last", "5m", "--until", "2026-03-01T16:20:00", "--run", demo, "--json").out
    )
    assert (before["hits"], before["n"]) == (0, 200)
    assert before["window"]["since"] == "2026-03-01T16:15:00.000Z"


def test_share_of_samples_over_all_runs(ask, write):
    write(sample(f"share-{n % 2}", n, 1, n / 10) for n in range(10))
    outcome = ask("share", "reward < 0.45", "--last", "1m", "--until", "2026-05-28T20:27:40Z", "--json")
    assert (json.loads(outcome.out)["hits"], json.loads(outcome.out)["n"]) == (5, 10)


def test_logs_are_folded_and_whole(ask, write):
    long = "x" * 150
    write(
        [
            *(line("printed", n, "Zero gradients", level="warning", rank=n) for n in range(3)),
            line("printed", 5, long, level="error"),
            line("printed", 6, "fine", level="info"),
        ]
    )
    outcome = ask("logs", "printed")
    assert outcome.out.splitlines() == [
        "2026-05-28 UTC",
        "20:26:40.000 WARNING ranks 0\u20132 Zero gradients  x3, last 20:26:42",
        f"20:26:45.000 ERROR            {long}",
        "20:26:46.000 INFO             fine",
    ]
    assert ask("logs", "printed", "--level", "error").out.splitlines() == [
        "2026-05-28 UTC",
        outcome.out.splitlines()[2],
    ]
    entries = [json.loads(row) for row in ask("logs", "printed", "--rank", "1", "--json").out.splitlines()]
    assert [(entry["message"], entry["count"]) for entry in entries] == [("Zero gradients", 1)]


def test_logs_are_in_order_of_true_time(ask, write):
    """The clock of node-1 is 2 s ahead, so its line is the first although its stamp is the later one."""
    ahead = {"node-0": 0, "node-1": 2}
    write(
        [
            *(
                record("skewed", 10 * step + late, step=step, stage=stage, host=host, metrics={"loss": 1.0})
                for step in range(1, 6)
                for stage in ("actor", "critic")
                for host, late in ahead.items()
            ),
            line("skewed", 51, "second", step=5, host="node-0"),
            line("skewed", 52.5, "first", step=5, host="node-1"),
        ]
    )
    outcome = ask("logs", "skewed", "--json")
    assert [json.loads(text)["message"] for text in outcome.out.splitlines()] == ["first", "second"]
    assert outcome.err == "clock of node-1 +2.00 s; lines are in order of true time\n"


@pytest.mark.parametrize(("late_s", "look"), [(30, "pass"), (1_800, "ask.POLLS_PER_LATEST = 1")])
def test_logs_follow_what_comes(elasticsearch_url, write, late_s, look):
    write([line("followed", 4_000, "old"), record("followed", 4_000, step=1)])
    program = f"from verl_ingest.cli import ask, main; {look}; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "logs", "followed", "-f"],
        env={**os.environ, "ELASTICSEARCH_URL": elasticsearch_url},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = threading.Timer(60, process.kill)
    deadline.start()
    try:
        assert process.stdout.readline() == "2026-05-28 UTC\n"
        assert process.stdout.readline().endswith("old\n")
        write([line("followed", 4_001, "new"), line("followed", 4_002, "newer")])
        assert process.stdout.readline().endswith("new\n")
        assert process.stdout.readline().endswith("newer\n")
        write([line("followed", 4_002 - late_s, "late")])
        assert process.stdout.readline().endswith("late\n")
    finally:
        deadline.cancel()
        process.terminate()
        process.wait()
