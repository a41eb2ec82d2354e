"""Pins: runs that stay, how they are listed and named."""

from tests.old_days import records_of, samples_of
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.retention import pins
from verl_ingest.retention.pins import Pin


def test_pins_are_listed_with_what_there_is_of_them_and_why(ask, own_days, fill_day):
    assert ask("pins").out == "No run is pinned; `verl-ingest pin RUN` pins one.\n"
    fill_day(records_of(1), "listed-a", "listed-b")
    fill_day(samples_of(1), "listed-a")
    ask("pin", "listed-a", "--why", "best of its sort")
    ask("pin", "listed-b")
    lines = [line.split(maxsplit=4) for line in ask("pins").out.splitlines()]
    assert lines[0] == ["run", "pinned", "documents", "indices", "why"]
    assert [(line[0], *line[2:]) for line in lines[1:]] == [
        ("listed-a", "2", "2", "best of its sort"),
        ("listed-b", "1", "1"),
    ]


def test_pinning_again_keeps_the_day_and_the_reason_unless_there_is_a_new_one(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "again")
    ask("pin", "again", "--why", "first")
    [first] = pins.read(own_days)
    in_days(3)
    ask("pin", "again")
    assert pins.read(own_days) == [first]
    ask("pin", "again", "--why", "second")
    assert pins.read(own_days) == [Pin("again", first.since, "second")]


def test_a_run_without_records_can_be_unpinned(ask, own_days, fill_day):
    fill_day(records_of(1), "gone-run", "gone-too")
    ask("pin", "gone-run")
    own_days.indices.delete(index=records_of(1))
    assert ask("pins").out.splitlines()[1].split()[2:] == ["0", "0"]
    assert ask("unpin", "gone-r").out == "gone-run is no longer pinned.\n"
    assert pins.read(own_days) == []


def test_last_is_the_run_that_logged_last(ask, own_days, fill_day, monkeypatch):
    fill_day(records_of(1), "newest-of-all")
    monkeypatch.setattr(ElasticStore, "newest_run", lambda _: "newest-of-all")
    assert ask("pin", "@last").out == "newest-of-all is pinned: its 1 document in 1 index will be kept.\n"
    assert ask("unpin", "@last").out == "newest-of-all is no longer pinned.\n"


def test_a_wrong_name_is_one_sentence(ask, own_days, fill_day):
    fill_day(records_of(1), "wrong-a", "wrong-b")
    assert ask("pin", "wrong-c").err.startswith("error: There is no run 'wrong-c'; did you mean ")
    assert ask("pin", "wrong-").err.startswith("error: 'wrong-' is the beginning of 2 runs: wrong-a, wrong-b;")
    assert ask("unpin", "wrong-a").err == (
        "error: No run 'wrong-a' is pinned; `verl-ingest pins` lists those that are.\n"
    )
    ask("pin", "wrong-a")
    ask("pin", "wrong-b")
    assert ask("unpin", "wrong-").err == (
        "error: 'wrong-' is the beginning of 2 pinned runs: wrong-a, wrong-b; write more of the name.\n"
    )


def test_a_name_of_any_length_can_be_pinned(own_days):
    long = Pin("x" * 2_000, "2026-01-01T00:00:00.000Z", "long")
    pins.add(own_days, long)
    assert pins.read(own_days) == [long]
    pins.remove(own_days, long.run_id)
    pins.remove(own_days, long.run_id)  # someone else has done it
    assert pins.read(own_days) == []
