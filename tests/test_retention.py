"""Retention: which daily indices are old enough, and what a real server then has and has not."""

import pytest

from tests.command import Outcome
from tests.old_days import YEAR, records_of, samples_of, there
from verl_ingest.index import state
from verl_ingest.retention import due
from verl_ingest.retention.due import DAY_MS, Index, Limits

NOW = 1_780_000_000_000


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
def test_days_come_from_the_command_else_from_the_settings(words, of_settings, kept, ask, own_days, monkeypatch):
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


def test_old_indices_are_shown_then_deleted(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "old-a", "old-b")
    fill_day(records_of(2), "old-a")
    fill_day(samples_of(1), "old-a")
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
    assert there(own_days) == {samples_of(1)}
    in_days(61)
    assert ask("retention", "--days", "30", "--samples-days", "60").code == 0
    assert there(own_days) == set()


def test_young_indices_stay(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "young")
    in_days(29)
    assert ask("retention", "--days", "30").out == (
        "Records are kept 30 days, samples 30 days. Old enough to go: 0 of 1 daily indices.\nDeleted no index.\n"
    )
    assert there(own_days) == {records_of(1)}


def test_a_dry_run_deletes_nothing(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "dry")
    in_days(31)
    outcome = ask("retention", "--days", "30", "--dry-run")
    assert outcome.out.splitlines()[-1].startswith("Dry run, nothing was deleted. To be deleted: 1 index (1 document, ")
    assert there(own_days) == {records_of(1)}


def test_the_indices_of_a_pinned_run_stay_its_samples_too(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "kept-1", "other")
    fill_day(records_of(2), "other")
    fill_day(samples_of(1), "kept-1")
    fill_day(samples_of(2), "kept-10")
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
    assert there(own_days) == {records_of(1), samples_of(1)}
    assert ask("unpin", "kept-1").out == "kept-1 is no longer pinned.\n"
    ask("retention", "--days", "30")
    assert there(own_days) == set()


def test_what_is_not_a_daily_index_or_is_closed_stays(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "plain")
    fill_day(records_of(2), "closed")
    own_days.indices.close(index=records_of(2))
    others = [f"verl-{YEAR}.01.01-000001", f"verl-{YEAR}.13.01", f"verl-samples-{YEAR}.01.1"]
    for name in others:
        own_days.indices.create(index=name)
    own_days.indices.put_alias(index=others[0], name=records_of(3))
    in_days(31)
    assert ask("retention", "--days", "30").code == 0
    assert there(own_days) == {*others, records_of(2)}


def test_an_index_that_cant_be_deleted_hides_no_other(ask, own_days, fill_day, in_days):
    for day in (1, 2, 3):
        fill_day(records_of(day), "stuck")
    own_days.indices.put_settings(index=records_of(2), settings={"index.blocks.read_only": True})
    in_days(31)
    outcome = ask("retention", "--days", "30")
    assert outcome.code == 1
    assert outcome.err == "error: 1 index could not be deleted, see above; mend that, then run this again.\n"
    *_, told, done = outcome.out.splitlines()
    assert told.startswith(f"{records_of(2)}: not deleted: Elasticsearch at ") and "read-only" in told
    assert done.startswith("Deleted 2 indices (2 documents, ")
    assert there(own_days) == {records_of(2)}


def test_an_index_that_cant_be_looked_into_stays_while_there_are_pins(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "pinned-run")
    assert ask("pin", "pinned-run").code == 0
    name, shaped = f"retention-{YEAR}", {"mappings": {"properties": {"run_id": {"type": "text"}}}}
    own_days.indices.put_index_template(name=name, index_patterns=[records_of(2)], template=shaped, priority=300)
    try:
        fill_day(records_of(2), "pinned-run")
    finally:
        own_days.indices.delete_index_template(name=name)
    fill_day(records_of(3), "other-run")
    in_days(31)
    looked = ask("retention", "--days", "30", "--dry-run")
    assert (looked.code, looked.err[:40]) == (1, "error: 1 index could not be looked into,")
    outcome = ask("retention", "--days", "30")
    assert outcome.code == 1
    assert f"not deleted: Index {records_of(2)} was made without the kit's templates" in outcome.out
    assert there(own_days) == {records_of(1), records_of(2)}


def test_where_the_pins_cant_be_read_nothing_is_deleted(ask, own_days, fill_day, in_days):
    fill_day(records_of(1), "unread")
    ask("pin", "unread")
    own_days.indices.close(index=state.INDEX)
    in_days(31)
    outcome = ask("retention", "--days", "30")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("error: Elasticsearch at ") and "index_closed" in outcome.err
    assert there(own_days) == {records_of(1)}
