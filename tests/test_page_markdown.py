"""The first screen as Markdown."""

from dataclasses import replace

from verl_ingest.serve.page import markdown
from verl_ingest.serve.page.story import FirstError


def test_the_first_screen_is_all_there(view_of, demo_with_console):
    text = markdown.text(view_of(demo_with_console, 199))
    lines = text.split("\n")
    assert lines[0].startswith("**Critical: console-of-ask-demo, step 199, attempt 1, ")
    assert lines[0].endswith("** (2026-03-01 16:40:24\u201316:40:32 UTC)")
    assert lines[2].startswith("- First error on rank 3: CUDA OOM during critic forward")
    for part in (
        "First: Look at the longest responses",
        "First error: rank 3, train-node-01, pid 4103",
        "Then rank 5: NCCL error.",
        "| metric | value | usual | z | |",
        "| kl_divergence | 0.0705 |",
        "- rank 3 (train-node-01, pid 4103): GPU out of memory",
        "Stages: rollout",
        "96 of 96 metric records",
        "<https://verl.example/permalink>",
    ):
        assert part in text


def test_a_healthy_step_is_short(view_of, demo):
    text = markdown.text(view_of(demo, 100))
    assert text.startswith("**Normal: ask-demo, step 100")
    assert (
        "First:" not in text
        and "First error" not in text
        and "rank" not in text.split("| metric")[1].split("Stages")[0]
    )


def test_nothing_in_a_text_is_markup(view_of, demo):
    view = replace(
        view_of(demo, 100),
        sentences=("a *b* [c](d) <script> `e` # f | g\nnext",),
        error=FirstError("rank 1", "host", "12:00", "boom ```\n# no heading", ('File "x"',), ()),
    )
    text = markdown.text(view)
    assert r"- a \*b\* \[c\](d) \<script\> \`e\` \# f \| g next" in text
    assert '````\nFile "x"\nboom ```\n# no heading\n````' in text
