import io
import re

import pytest
from rich.console import Console

from tests.documents import line, record, sample
from verl_ingest.catalog import metrics
from verl_ingest.context import lines, runs, step, words
from verl_ingest.context.glance import Glance
from verl_ingest.context.setup import Setup
from verl_ingest.query.store import Mark, RunRow
from verl_ingest.show import lines as show_lines
from verl_ingest.show import runs as show_runs
from verl_ingest.show import step as show_step

CATALOGUE = metrics.load()
HOSTILE = "[red]r[/red] [link=x] 'a' \\"


def printed(renderable, *, width: int = 100, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        highlight=False,
        force_terminal=colour,
        color_system="standard" if colour else None,
    )
    console.print(renderable, soft_wrap=False)
    return console.file.getvalue()


@pytest.fixture
def shown(store):
    def show(run_id: str, number: int, *, width: int = 100, rank: int | None = None, colour: bool = False) -> str:
        with store.open(run_id) as run:
            context = step.assemble(run, number, catalogue=CATALOGUE, now=2 * 10**12, window=50)
        return printed(show_step.render(context, CATALOGUE, width=width, rank=rank), width=width, colour=colour)

    return show


@pytest.mark.parametrize("width", [100, 80, 60])
@pytest.mark.parametrize("number", [1, 50, 128, 137, 160, 175, 203])
def test_a_step_fits_the_width_and_the_screen(shown, demo, number, width):
    text = shown(demo, number, width=width)
    assert max(len(row) for row in text.splitlines()) <= width
    assert len(text.splitlines()) <= 45


def test_what_is_abnormal_comes_first(shown, demo):
    rows = shown(demo, 128).splitlines()
    assert rows[0].startswith("ask-demo \u00b7 step 128 \u00b7 attempt 1") and rows[0].endswith("abnormal")
    assert rows[1].startswith("!  KL 0.0204 nats is")
    assert rows[4].startswith("kl_divergence ")
    assert shown(demo, 50).splitlines()[0].endswith("ranks 0\u20137 \u00b7 normal")


def test_the_golden_six_are_always_there(shown, demo):
    for name in ("kl_divergence", "entropy", "reward_mean", "adv_mean", "adv_std", "clip_fraction"):
        assert name in shown(demo, 175)


def test_numbers_are_aligned_to_the_right(shown, demo):
    rows = [row for row in shown(demo, 50).splitlines() if re.match(r"metric|kl_divergence|entropy|reward_mean", row)]
    assert len(rows) == 4
    assert len({re.match(r"\S+ +\S+", row).end() for row in rows}) == 1


def test_earlier_attempts_resources_and_a_rank_have_their_place(shown, demo):
    assert re.search(r"attempt +last record .*\n +1 .*\n +2 ", shown(demo, 203))
    assert re.search(r"resources +train-node-02 +median of 2 hosts", shown(demo, 175))
    assert re.search(r"metric +rank 3 +mean", shown(demo, 50, rank=3))
    assert "clock of train-node-02 +0.35 s" in shown(demo, 50)


def test_a_slow_disk_is_said_first_and_the_same_metric_of_the_console_is_not_said_again(shown, demo_with_console):
    text = shown(demo_with_console, 163)
    assert text.splitlines()[1].startswith("!  system/disk_io_wait_ms 79.7 ms is over 100 sigma above")
    assert "gpu/utilization_pct 31.4 % is" in text and "GPU Util" not in text
    assert re.search(r"^system/disk_io_wait_ms +79.7 +1.95 +>99 ", text, re.MULTILINE)
    assert re.search(
        r"^resources +median of 2 hosts +usual *\nsystem/disk_io_wait_ms +79.7 ms +1.95 ms", text, re.MULTILINE
    )


def test_counters_come_last_and_have_no_z(shown, write):
    write(
        record("counting", n, step=n, metrics={"training/global_step": n, "Epoch": n / 100, "loss": 1.0 + n % 3 / 10})
        for n in range(1, 21)
    )
    rows = [row.split() for row in shown("counting", 20).splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("loss", "training/global_step")] == [
        "loss",
        "training/global_step",
    ]
    assert [row[3] for row in rows if row and row[0] in ("training/global_step", "Epoch")] == [words.DASH] * 2


def test_one_of_a_thing_is_singular_and_names_are_quoted(shown, write):
    name = "17 #a!b 中"
    write(
        [
            *(record(name, n, step=n, rank=0, stage="actor", metrics={"actor_loss": 1.0}) for n in range(1, 13)),
            line(name, 12, "quiet", step=12, level="info"),
        ]
    )
    assert "1 metric on 1 rank is as in the 11 steps before." in shown(name, 12)
    assert "1 of 1 metric record" in shown(name, 12) and "1 metric records" not in shown(name, 12)
    assert "1 more line: verl-ingest logs '17 #a!b 中' --steps 12" in shown(name, 12)
    assert "but only 1 step before it is there" in shown(name, 2)
    assert "but no step before it is there" in shown(name, 1)


def test_errors_lines_and_samples(shown, write):
    stack = "Traceback (most recent call last):\n" + "\n".join(f"  frame {n}" for n in range(9)) + "\nE: [bold]m"
    write(
        [
            record("shown", 1, step=1, rank=0, stage="actor", metrics={"loss": 1.0, HOSTILE: 2.0}),
            line(
                "shown",
                2,
                "",
                step=1,
                rank=0,
                **{"error.type": "E", "error.message": "[bold]m", "error.stack_trace": stack},
            ),
            line("shown", 3, HOSTILE, step=1, level="warning"),
            line("shown", 3, "quiet", step=1, level="info"),
            sample("shown", 4, 1, 0.0, output=""),
            sample("shown", 4, 1, 0.1, output=HOSTILE + "\nsecond line"),
            sample("shown", 4, 1, 0.2),
        ]
    )
    text = shown("shown", 1)
    assert "E: [bold]m" in text and "frame 8" in text and "frame 2" not in text
    assert text.count(HOSTILE) == 3
    assert "second line" not in text and "(empty)" in text and "(text not kept)" in text
    assert "1 more line: verl-ingest logs shown --steps 1" in text


def test_long_texts_are_cut_and_scores_stay(shown, write):
    stack = "Traceback\n" + "x" * 500
    failed = {"error.type": "E", "error.message": "y" * 5_000, "error.stack_trace": stack}
    write(
        [
            record("long", 1, step=1, stage="trainer", metrics={"loss": 1.0}) | {"time_source": "estimated"},
            line("long", 2, "", step=1, **failed) | {"time_source": "estimated"},
            line("long", 0, "Total steps: 9"),
            sample("long", 4, 1, 0.25, output="the " * 100),
        ]
    )
    text = shown("long", 1)
    assert "step 1 of 9" in text and "attempt 1 \u00b7 about 2026-05-28" in text
    assert len(text.splitlines()) < 25
    assert re.search(r"^0\.25  the the .*…$", text, re.MULTILINE)


def test_a_step_of_samples_alone_is_shown(shown, write):
    write([sample("shown-samples", 4, 1, 0.5, output="x")])
    assert shown("shown-samples", 1).startswith("shown-samples \u00b7 step 1 \u00b7 attempt 1 \u00b7 normal")


def test_a_folded_line_is_one_line_however_long():
    folds = lines.fold([line("r", n, "x" * 300, level="warning", rank=n, host="node-1") for n in (0, 1)])
    text = show_lines.render(folds[0].entry()).plain
    assert text == f"20:26:40.000 WARNING ranks 0\u20131 {'x' * 300}  x2, last 20:26:41"


def test_colours_only_where_there_is_a_terminal(shown, demo):
    assert "\x1b[" not in shown(demo, 128)
    assert "\x1b[1;31mabnormal" in shown(demo, 128, colour=True)


def test_a_long_line_is_cut_where_asked_and_another_day_is_said():
    folds = lines.fold([line("r", at, "x" * 500) for at in (1, 86_401)])
    entry = folds[0].entry()
    assert show_lines.day(entry) == "2026-05-28 UTC"
    assert show_lines.render(entry, most=400).plain.endswith(
        f" {'x' * 400}… (100 more characters: --json shows them)  x2, last 2026-05-29T20:26:41"
    )
    assert f" {'x' * 500}  x2" in show_lines.render(entry, most=500).plain


@pytest.mark.parametrize(("width", "name"), [(80, "ppo-demo"), (80, "中" * 15), (100, "x" * 40)])
def test_metrics_make_room_for_the_names_of_runs(width, name):
    golden = {metric.name: -5.65e-09 for metric in CATALOGUE.golden}
    found = runs.Run(
        RunRow(name, 1, 0, 0, Mark(0, True, 100), None), Setup(total_steps=300), [], golden, now=90_000_000
    )
    rows = printed(show_runs.render([found], CATALOGUE, width=width), width=width).splitlines()
    assert len(rows) == 3 and rows[1].startswith(f"{name} ") and "100/300" in rows[1]
    assert rows[0].split().count("KL") == 1 and "clipped" not in rows[0]
    assert re.fullmatch(r"left out: .*, clipped \(--json has all\)", rows[2].strip())


@pytest.mark.parametrize(
    ("glance", "error", "said"),
    [
        (Glance(True, 97), None, "since 97"),
        (Glance(True), None, "yes"),
        (Glance(False), None, "no"),
        (None, Mark(1_000, True, 101), "since 101"),  # crashed
        (Glance(True, 97), Mark(1_000, True, 101), "since 97"),
        (None, Mark(1_000, True, None), "yes"),
        (None, None, None),
    ],
)
@pytest.mark.parametrize("width", [100, 60])
def test_runs_that_are_abnormal_stand_out(glance, error, said, width):
    row = RunRow("x" * 20, 1, 0, 0, Mark(0, True, 100), error)
    found = runs.Run(row, Setup(), [], {}, now=90_000_000, pinned=said == "no", glance=glance)
    text = printed(show_runs.render([found], CATALOGUE, width=width), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("abnormal" in text) is (said is not None)
    assert said is None or f" {said} " in text
    assert ("pinned" in text) is (said == "no")
    red = printed(show_runs.render([found], CATALOGUE, width=width), width=width, colour=True)
    assert (f"\x1b[31m{said}" in red) is (said not in (None, "no"))


def test_a_run_whose_times_lie_in_the_future_says_so_below():
    found = runs.Run(RunRow("ahead", 1, 0, 27_078_000, None, None), Setup(), [], {}, now=0)
    rows = printed(show_runs.render([found], CATALOGUE, width=120), width=120).splitlines()
    assert rows[1].split()[:2] == ["ahead", "unknown"] and "ago" not in rows[1]
    assert rows[-1].strip() == "ahead: times lie 7 h 31 min in the future; set timezone"


@pytest.mark.parametrize("width", [100, 60])
def test_runs_fit_the_width(width):
    golden = {metric.name: 0.0123456 for metric in CATALOGUE.golden}
    at = Mark(0, True, 12_340)
    row = RunRow(HOSTILE, 1, 0, 0, at, None)
    found = [
        runs.Run(row, Setup(total_steps=99_999), [10.0] * 50, golden, now=29_000),
        runs.Run(RunRow("x" * 70, 1, 0, 0, None, None), Setup(), [], {}, now=90_000_000),
    ]
    text = printed(show_runs.render(found, CATALOGUE, width=width), width=width)
    assert max(len(row) for row in text.splitlines()) <= width
    assert "running 12340/99999 10 d 3 h 29 s ago" in " ".join(text.split())
    assert "ended" in text and "1 d ago" in text
    assert "left out: KL, entropy, reward, adv mean, adv std, clipped" in text
    assert "".join(text.split()).count("x") >= 60
