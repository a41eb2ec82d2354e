"""Making step summaries: a pass over a run, keeping up with it, the command, a load."""

import itertools
import json
import time

import pytest

from tests.documents import record
from tests.summarised import CATALOGUE, loss, remove_summaries
from verl_ingest.cli import summarize
from verl_ingest.demo import logs
from verl_ingest.errors import StoreError
from verl_ingest.show import summaries as show_summaries
from verl_ingest.summarise import run as summarising
from verl_ingest.summarise import writing
from verl_ingest.summarise.run import Changes


def test_a_pass_that_was_interrupted_goes_on_where_it_was(write, summarise, monkeypatch, templated):
    write(loss("interrupted", step, 0, float(step)) for step in range(1, 8))
    monkeypatch.setattr(summarising, "RECORDS", 2)
    plain, calls = writing.write, itertools.count()

    def write_twice(client, made):
        if next(calls) == 2:
            raise KeyboardInterrupt
        plain(client, made)

    monkeypatch.setattr(writing, "write", write_twice)
    with pytest.raises(KeyboardInterrupt):
        summarise("interrupted")
    monkeypatch.setattr(writing, "write", plain)
    writing.refresh(templated)
    assert summarise("interrupted") == Changes(new=[5, 6, 7], kept=4)


def test_a_rebuild_makes_every_summary_again(write, summarise, monkeypatch):
    monkeypatch.setattr(summarising, "STEPS", 2)
    write(loss("rebuilt", step, 0, float(step)) for step in range(1, 6))
    done = []
    assert summarise("rebuilt", progress=done.append) == Changes(new=[1, 2, 3, 4, 5])
    assert done == [2, 2, 1]
    assert summarise("rebuilt") == Changes(kept=5)
    monkeypatch.setattr(summarising, "NEWEST", 2)
    assert summarise("rebuilt", newest_only=True, rebuild=True) == Changes(again=[4, 5])


def test_a_run_without_steps_has_no_summaries(write, summarise):
    write([record("stepless", 0, kind="event", event="resume")])
    assert summarise("stepless") == Changes()


def test_keeping_up_looks_at_the_newest_steps_and_now_and_then_at_all(store, write, templated, monkeypatch):
    monkeypatch.setattr(summarising, "NEWEST", 2)
    monkeypatch.setattr(summarising, "LOOKS_PER_WHOLE", 3)
    write(loss("kept-up", step, 0, float(step), pid=1) for step in range(1, 6))
    waits = []
    looks = summarising.keep_up(
        store, templated, "kept-up", catalogue=CATALOGUE, wait=lambda: waits.append(templated.indices.refresh())
    )
    assert next(looks) == Changes(new=[1, 2, 3, 4, 5])
    write([loss("kept-up", 1, 1, 9.0), loss("kept-up", 5, 1, 9.0), loss("kept-up", 6, 0, 6.0, pid=1)])
    assert next(looks) == Changes(new=[6], again=[5])
    assert next(looks) == Changes(kept=2)
    assert next(looks) == Changes(again=[1], kept=5)
    write(loss("kept-up", step, 0, 0.0, at=1_000 + step, pid=2) for step in (3, 4))
    assert next(looks) == Changes(new=[3, 4], kept=4)  # resumed below the newest steps
    assert len(waits) == 4
    remove_summaries(templated, "kept-up")


def test_the_command_says_what_it_did(ask, write, templated):
    write(loss("commanded", step, 0, float(step)) for step in range(1, 4))
    first = "Step summaries of commanded: 3 new, 0 made again, 0 were up to date.\n"
    assert (outcome := ask("summarize", "command")).out == first and outcome.code == 0
    write([loss("commanded", 2, 1, 0.0)])
    assert json.loads(ask("summarize", "commanded", "--json").out) == {"new": [], "again": [2], "kept": 2, "removed": 0}
    assert ask("summarize", "nobody").err.startswith("error: There is no run 'nobody'")
    remove_summaries(templated, "commanded")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (Changes(new=[122, 121], again=[87]), "steps 121\u2013122 new; step 87 made again"),
        (Changes(again=list(range(0, 40, 2)), removed=1), "20 steps made again; 1 removed"),
    ],
)
def test_a_look_that_changed_something_is_a_line(changes, line):
    at = time.struct_time((2026, 3, 1, 12, 3, 5, 6, 60, 0))
    assert show_summaries.line(changes, at=at) == f"12:03:05  {line}"


def test_a_load_summarises_the_steps_it_wrote(ask, templated, tmp_path):
    logs.write(tmp_path / "loaded-steps", steps=3, ranks=1)
    loaded = ask("load", str(tmp_path / "loaded-steps"), "--timezone", "Etc/UTC")
    assert "summarised   3  steps with records written" in loaded.out
    again = json.loads(ask("load", str(tmp_path / "loaded-steps"), "--timezone", "Etc/UTC", "--json").out)
    assert (again["created"], again["summarised"], again["not_summarised"]) == (0, 3, "")
    remove_summaries(templated, "loaded-steps")


def test_a_load_that_cannot_summarise_is_a_load_all_the_same(ask, templated, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise StoreError("Elasticsearch refused a step summary: no.")

    monkeypatch.setattr(summarize, "bring_up_to_date", refuse)
    logs.write(tmp_path / "loaded-only", steps=1, ranks=1)
    loaded = ask("load", str(tmp_path / "loaded-only"), "--timezone", "Etc/UTC")
    assert loaded.code == 0
    assert "summarised  0  Elasticsearch refused a step summary: no." in loaded.out
