"""Retention and pins: what is old enough, what a real server then has and has not, whatever happens meanwhile.

The indices are of a year that no other test has, and the pins in an index of their own: a server may be shared.
Their age can't be set, so that it is the clock that is moved.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch, helpers

from tests.command import Outcome
from tests.documents import Document, record, sample
from tests.gate import Gate
from verl_ingest.catalog import metrics
from verl_ingest.cli import ask as ask_commands
from verl_ingest.cli import retention as commands
from verl_ingest.index import apply, state
from verl_ingest.index.mappings import STEPS_INDEX
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.retention import due, pins, store
from verl_ingest.retention.due import DAY_MS, Index, Limits
from verl_ingest.retention.pins import Pin
from verl_ingest.settings import Settings
from verl_ingest.summarise import writing
from verl_ingest.summarise.run import bring_up_to_date

YEAR = 2001 + os.getpid() % 20
MINE = f"verl-{YEAR}.*,verl-samples-{YEAR}.*"
NOW = 1_780_000_000_000


def records_of(day: int) -> str:
    return f"verl-{YEAR}.01.{day:02}"


def samples_of(day: int) -> str:
    return f"verl-samples-{YEAR}.01.{day:02}"


# What is old enough.


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("verl-2026.01.31", True),
        ("verl-samples-2028.02.29", True),
        ("verl-2026.02.29", False),
        ("verl-2026.1.1", False),
        ("verl-2026.01.01-000001", False),
        ("xverl-2026.01.01", False),
        ("partial-verl-2026.01.01", False),
        ("verl-other-2026.01.01", False),
        ("verl-samples-samples-2026.01.01", False),
        ("verl_steps", False),
        ("verl_kit_state", False),
        ("verl-2026.01.01\n", False),
        ("verl-\u0662\u0660\u0662\u0666.01.01", False),
    ],
)
def test_only_the_kits_daily_indices_are_touched(name: str, is_one: bool):
    assert due.is_daily(name) is is_one
    old = Index(name, NOW - 400 * DAY_MS)
    assert due.due([old], Limits(30, 30), now=NOW) == ([old] if is_one else [])


def test_what_was_made_more_than_so_many_days_ago_is_due_the_oldest_first():
    indices = [
        Index("verl-2026.01.03", NOW - 30 * DAY_MS),
        Index("verl-2026.01.02", NOW - 30 * DAY_MS - 1),
        Index("verl-samples-2026.01.02", NOW - 8 * DAY_MS),
        Index("verl-samples-2026.01.03", NOW - 7 * DAY_MS),
        Index("verl-2026.01.01", NOW - 99 * DAY_MS),
    ]

    def names(records: int | None, samples: int | None) -> list[str]:
        return [index.name for index in due.due(indices, Limits(records, samples), now=NOW)]

    assert names(30, 7) == ["verl-2026.01.01", "verl-2026.01.02", "verl-samples-2026.01.02"]
    assert names(30, 30) == ["verl-2026.01.01", "verl-2026.01.02"]
    assert names(None, 7) == ["verl-samples-2026.01.02"]
    assert names(30, None) == ["verl-2026.01.01", "verl-2026.01.02"]


@pytest.mark.parametrize(
    ("words", "of_settings", "kept"),
    [
        (["--days", "30"], {}, "Records are kept 30 days, samples 30 days"),
        (["--days", "30", "--samples-days", "7"], {}, "Records are kept 30 days, samples 7 days"),
        (["--samples-days", "7"], {}, "Records are kept for ever, samples 7 days"),
        ([], {"DAYS": "90", "SAMPLES_DAYS": "9"}, "Records are kept 90 days, samples 9 days"),
        (["--days", "60"], {"DAYS": "90", "SAMPLES_DAYS": "9"}, "Records are kept 60 days, samples 9 days"),
    ],
)
def test_days_come_from_the_command_else_from_the_settings(words, of_settings, kept, ask, mine, monkeypatch):
    for name, value in of_settings.items():
        monkeypatch.setenv(f"VERL_INGEST_RETENTION__{name}", value)
    outcome = ask("retention", *words, "--dry-run")
    assert outcome == Outcome(
        0,
        f"{kept}. Old enough to go: 0 of 0 daily indices.\nDry run, nothing was deleted. To be deleted: no index.\n",
        "",
    )


def test_without_days_nothing_is_deleted(ask):
    assert ask("retention") == Outcome(
        1,
        "",
        "error: Nothing says for how long to keep records, so none is deleted; give --days N, or set retention.days.\n",
    )


# On a real server.


@pytest.fixture
def mine(templated: Elasticsearch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Elasticsearch]:
    """A server on which the kit sees the indices of this test alone, and pins of its own."""
    own = f"{state.INDEX}_{YEAR}"
    apply.KINDS["index_template"].write(templated, state.TEMPLATE, state.template().body)
    monkeypatch.setattr(store, "ALL_PATTERN", MINE)
    monkeypatch.setattr(commands, "ALL_PATTERN", MINE)
    monkeypatch.setattr(state, "INDEX", own)
    quiet = templated.options(ignore_status=404)
    yield templated
    monkeypatch.undo()
    left = [*templated.indices.get_settings(index=MINE, expand_wildcards="all"), own]
    for name in left:
        quiet.indices.put_settings(index=name, settings={"index.blocks.read_only": None})
        quiet.indices.delete(index=name)


@pytest.fixture
def in_days(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let it be so many days later for the commands."""
    later = ask_commands.now_ms

    def move(days: int) -> None:
        monkeypatch.setattr(commands, "now_ms", lambda: later() + days * DAY_MS)

    return move


@pytest.fixture
def fill(mine: Elasticsearch) -> Callable[..., None]:
    """Write a record of each run into an index."""

    def write(index: str, *runs: str) -> None:
        day = index[-10:].replace(".", "-")
        make = sample if "samples" in index else record
        more = {"step": 1, "score": 0.5} if "samples" in index else {"step": 1, "metrics": {"loss": 1.0}}
        documents = [make(run, 0, **more) | {"@timestamp": f"{day}T12:00:00.000Z"} for run in runs]
        helpers.bulk(mine, [_action(index, document) for document in documents], refresh=True)

    return write


def _action(index: str, document: Document) -> dict[str, object]:
    return {"_index": index, "_id": document["event_id"], "_source": document}


def there(server: Elasticsearch) -> set[str]:
    return set(server.indices.get_settings(index=MINE, expand_wildcards="all"))


def found(server: Elasticsearch, name: str) -> Index:
    return next(index for index in store.indices(server) if index.name == name)


def delete(server: Elasticsearch, index: Index) -> due.Verdict:
    return store.delete(server, index, Settings())


def test_old_indices_are_shown_then_deleted(ask, mine, fill, in_days):
    fill(records_of(1), "old-a", "old-b")
    fill(records_of(2), "old-a")
    fill(samples_of(1), "old-a")
    in_days(31)
    outcome = ask("retention", "--days", "30", "--samples-days", "60")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[0] == "Records are kept 30 days, samples 60 days. Old enough to go: 2 of 3 daily indices."
    assert lines[1].split() == ["index", "made", "documents", "size", "verdict"]
    assert [(line.split()[0], line.split()[2], line[-13:]) for line in lines[2:4]] == [
        (records_of(1), "2", "to be deleted"),
        (records_of(2), "1", "to be deleted"),
    ]
    assert lines[4].startswith("Deleted 2 indices (3 documents, ")
    assert there(mine) == {samples_of(1)}
    in_days(61)
    assert ask("retention", "--days", "30", "--samples-days", "60").code == 0
    assert there(mine) == set()


def test_young_indices_stay(ask, mine, fill, in_days):
    fill(records_of(1), "young")
    in_days(29)
    assert ask("retention", "--days", "30").out == (
        "Records are kept 30 days, samples 30 days. Old enough to go: 0 of 1 daily indices.\nDeleted no index.\n"
    )
    assert there(mine) == {records_of(1)}


def test_a_dry_run_deletes_nothing(ask, mine, fill, in_days):
    fill(records_of(1), "dry")
    in_days(31)
    outcome = ask("retention", "--days", "30", "--dry-run")
    assert outcome.out.splitlines()[-1].startswith("Dry run, nothing was deleted. To be deleted: 1 index (1 document, ")
    assert there(mine) == {records_of(1)}


def test_the_indices_of_a_pinned_run_stay_its_samples_too(ask, mine, fill, in_days):
    fill(records_of(1), "kept-1", "other")
    fill(records_of(2), "other")
    fill(samples_of(1), "kept-1")
    fill(samples_of(2), "kept-10")
    assert (
        ask("pin", "kept-1", "--why", "the paper").out
        == "kept-1 is pinned: its 2 documents in 2 indices will be kept.\n"
    )
    in_days(31)
    lines = ask("retention", "--days", "30").out.splitlines()
    assert [line.split("  ")[0] for line in lines if line.endswith("kept: pinned by kept-1")] == [
        records_of(1),
        samples_of(1),
    ]
    assert there(mine) == {records_of(1), samples_of(1)}
    assert ask("unpin", "kept-1").out == "kept-1 is no longer pinned.\n"
    ask("retention", "--days", "30")
    assert there(mine) == set()


def test_what_is_not_a_daily_index_or_is_closed_stays(ask, mine, fill, in_days):
    fill(records_of(1), "plain")
    fill(records_of(2), "closed")
    mine.indices.close(index=records_of(2))
    others = [f"verl-{YEAR}.01.01-000001", f"verl-{YEAR}.13.01", f"verl-samples-{YEAR}.01.1"]
    for name in others:
        mine.indices.create(index=name)
    mine.indices.put_alias(index=others[0], name=records_of(3))
    in_days(31)
    assert ask("retention", "--days", "30").code == 0
    assert there(mine) == {*others, records_of(2)}


def test_an_index_that_cant_be_deleted_hides_no_other(ask, mine, fill, in_days):
    for day in (1, 2, 3):
        fill(records_of(day), "stuck")
    mine.indices.put_settings(index=records_of(2), settings={"index.blocks.read_only": True})
    in_days(31)
    outcome = ask("retention", "--days", "30")
    assert outcome.code == 1
    assert outcome.err == "error: 1 index could not be deleted, see above; mend that, then run this again.\n"
    *_, told, done = outcome.out.splitlines()
    assert told.startswith(f"{records_of(2)}: not deleted: Elasticsearch at ") and "read-only" in told
    assert done.startswith("Deleted 2 indices (2 documents, ")
    assert there(mine) == {records_of(2)}


def test_an_index_that_cant_be_looked_into_stays_while_there_are_pins(ask, mine, fill, in_days):
    fill(records_of(1), "pinned-run")
    assert ask("pin", "pinned-run").code == 0
    name, shaped = f"retention-{YEAR}", {"mappings": {"properties": {"run_id": {"type": "text"}}}}
    mine.indices.put_index_template(name=name, index_patterns=[records_of(2)], template=shaped, priority=300)
    try:
        fill(records_of(2), "pinned-run")
    finally:
        mine.indices.delete_index_template(name=name)
    fill(records_of(3), "other-run")
    in_days(31)
    looked = ask("retention", "--days", "30", "--dry-run")
    assert (looked.code, looked.err[:40]) == (1, "error: 1 index could not be looked into,")
    outcome = ask("retention", "--days", "30")
    assert outcome.code == 1
    assert f"not deleted: Index {records_of(2)} was made without the kit's templates" in outcome.out
    assert there(mine) == {records_of(1), records_of(2)}


def test_where_the_pins_cant_be_read_nothing_is_deleted(ask, mine, fill, in_days):
    fill(records_of(1), "unread")
    ask("pin", "unread")
    mine.indices.close(index=state.INDEX)
    in_days(31)
    outcome = ask("retention", "--days", "30")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: Elasticsearch at ") and "index_closed" in outcome.err
    assert there(mine) == {records_of(1)}


# What happens meanwhile.


def test_a_run_pinned_after_the_look_is_kept(mine, fill):
    fill(records_of(1), "late-pin")
    index = found(mine, records_of(1))
    assert store.judge(mine, index, Settings()).word == "due"
    pins.add(mine, Pin("late-pin", "2026-01-01T00:00:00.000Z"))
    verdict = delete(mine, index)
    assert (verdict.word, verdict.why) == ("kept", "pinned by late-pin")
    assert there(mine) == {records_of(1)}


def test_an_index_made_anew_after_the_look_is_kept(mine, fill):
    fill(records_of(1), "anew")
    index = found(mine, records_of(1))
    mine.indices.delete(index=records_of(1))
    assert delete(mine, index).word == "gone"
    fill(records_of(1), "anew")
    assert (delete(mine, index).word, delete(mine, index).why) == ("kept", "made anew meanwhile, by late lines")
    assert there(mine) == {records_of(1)}


def test_two_at_once_delete_each_index_once(mine, fill):
    for day in range(1, 9):
        fill(records_of(day), "twice")
    indices = store.indices(mine)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: [delete(mine, index).word for index in indices], range(2)))
    assert all(words in (("deleted", "gone"), ("gone", "deleted")) for words in zip(*both, strict=True))
    assert there(mine) == set()


def test_a_server_that_goes_away_half_way_is_said_and_the_next_run_goes_on(
    ask, mine, fill, in_days, monkeypatch, elasticsearch_url
):
    for day in (1, 2, 3):
        fill(records_of(day), "half-way")
    in_days(31)
    gate = Gate(elasticsearch_url)
    plain = store.delete

    def delete_one(server, index, settings):
        verdict = plain(server, index, settings)
        gate.close()
        return verdict

    monkeypatch.setattr(store, "delete", delete_one)
    monkeypatch.setenv("VERL_INGEST_ELASTICSEARCH_URL", gate.url)
    outcome = ask("retention", "--days", "30")
    assert outcome.code == 1
    assert outcome.err.endswith("1 of 3 indices had been deleted; run this again.\n")
    assert "can't be reached" in outcome.err
    assert there(mine) == {records_of(2), records_of(3)}
    gate.open()
    monkeypatch.setattr(store, "delete", plain)
    assert ask("retention", "--days", "30").code == 0
    gate.close()
    assert there(mine) == set()


# What comes after.


def test_step_summaries_go_with_their_days(ask, mine, fill, in_days):
    for day in (1, 2):
        fill(records_of(day), f"summed-{day}")
        with ElasticStore(mine).open(f"summed-{day}") as run:
            bring_up_to_date(run, mine, catalogue=metrics.load())
    ask("pin", "summed-2")
    in_days(31)
    assert ask("retention", "--days", "30").out.endswith("; 1 step summary of days that are gone.\n")
    left = mine.search(index=STEPS_INDEX, query={"terms": {"run_id": ["summed-1", "summed-2"]}})["hits"]["hits"]
    assert [hit["_source"]["run_id"] for hit in left] == ["summed-2"]
    ask("unpin", "summed-2")
    ask("retention", "--days", "30")
    assert mine.count(index=STEPS_INDEX, query={"prefix": {"run_id": "summed-"}})["count"] == 0


def test_summaries_are_removed_page_by_page(mine, fill, monkeypatch):
    monkeypatch.setattr(writing, "PAGE", 2)
    fill(records_of(1), *(f"paged-{number}" for number in range(5)))
    for number in range(5):
        with ElasticStore(mine).open(f"paged-{number}") as run:
            bring_up_to_date(run, mine, catalogue=metrics.load())
    mine.indices.delete(index=records_of(1))
    assert writing.remove_days(mine) >= 5
    assert mine.count(index=STEPS_INDEX, query={"prefix": {"run_id": "paged-"}})["count"] == 0


def test_late_lines_of_a_deleted_day_come_back_and_stay_as_long_again(ask, mine, in_days, tmp_path):
    file = log(tmp_path / "late-again", steps=3)
    assert ask("load", str(file)).code == 0
    in_days(31)
    ask("retention", "--days", "30")
    assert there(mine) == set()
    assert ask("audit", str(file)).code == 1
    assert ask("audit", str(file), "--repair").code == 0
    assert there(mine) == {records_of(1)}
    in_days(29)  # from now, when it came back
    ask("retention", "--days", "30")
    assert there(mine) == {records_of(1)}
    mine.indices.refresh(index=records_of(1))
    assert mine.count(index=records_of(1))["count"] == 3


def test_a_merged_index_takes_late_lines_and_repairs(ask, mine, tmp_path):
    file = log(tmp_path / "merged", steps=4)
    assert ask("load", str(file)).code == 0
    mine.indices.forcemerge(index=records_of(1), max_num_segments=1)  # all that the warm phase does
    hit = mine.search(index=records_of(1), size=1)["hits"]["hits"][0]
    mine.delete(index=records_of(1), id=hit["_id"], refresh=True)
    assert "1 line is missing" in ask("audit", str(file)).err
    assert ask("audit", str(file), "--repair").code == 0
    log(tmp_path / "merged", steps=6)
    assert ask("load", str(file)).code == 0
    mine.indices.refresh(index=records_of(1))
    assert mine.count(index=records_of(1))["count"] == 6


def log(folder: Path, *, steps: int) -> Path:
    """Write a rank log of a run that bears the folder's name."""
    file = folder / "logs" / "rank_0.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"timestamp": f"{YEAR}-01-01T12:00:{step:02}Z", "step": step, "rank": 0, "stage": "actor", "loss": 1.0}
        for step in range(1, steps + 1)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


# Pins.


def test_pins_are_listed_with_what_there_is_of_them_and_why(ask, mine, fill):
    assert ask("pins").out == "No run is pinned; `verl-ingest pin RUN` pins one.\n"
    fill(records_of(1), "listed-a", "listed-b")
    fill(samples_of(1), "listed-a")
    ask("pin", "listed-a", "--why", "best of its sort")
    ask("pin", "listed-b")
    lines = [line.split(maxsplit=4) for line in ask("pins").out.splitlines()]
    assert lines[0] == ["run", "pinned", "documents", "indices", "why"]
    assert [(line[0], *line[2:]) for line in lines[1:]] == [
        ("listed-a", "2", "2", "best of its sort"),
        ("listed-b", "1", "1"),
    ]


def test_pinning_again_keeps_the_day_and_the_reason_unless_there_is_a_new_one(ask, mine, fill, in_days):
    fill(records_of(1), "again")
    ask("pin", "again", "--why", "first")
    [first] = pins.read(mine)
    in_days(3)
    ask("pin", "again")
    assert pins.read(mine) == [first]
    ask("pin", "again", "--why", "second")
    assert pins.read(mine) == [Pin("again", first.since, "second")]


def test_a_run_without_records_can_be_unpinned(ask, mine, fill):
    fill(records_of(1), "gone-run", "gone-too")
    ask("pin", "gone-run")
    mine.indices.delete(index=records_of(1))
    assert ask("pins").out.splitlines()[1].split()[2:] == ["0", "0"]
    assert ask("unpin", "gone-r").out == "gone-run is no longer pinned.\n"
    assert pins.read(mine) == []


def test_last_is_the_run_that_logged_last(ask, mine, fill, monkeypatch):
    fill(records_of(1), "newest-of-all")
    monkeypatch.setattr(ElasticStore, "newest_run", lambda _: "newest-of-all")
    assert ask("pin", "@last").out == "newest-of-all is pinned: its 1 document in 1 index will be kept.\n"
    assert ask("unpin", "@last").out == "newest-of-all is no longer pinned.\n"


def test_a_wrong_name_is_one_sentence(ask, mine, fill):
    fill(records_of(1), "wrong-a", "wrong-b")
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


def test_a_name_of_any_length_can_be_pinned(mine):
    long = Pin("x" * 2_000, "2026-01-01T00:00:00.000Z", "long")
    pins.add(mine, long)
    assert pins.read(mine) == [long]
    pins.remove(mine, long.run_id)
    pins.remove(mine, long.run_id)  # someone else has done it
    assert pins.read(mine) == []
