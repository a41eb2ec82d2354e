"""Retention beside all else: what happens while it goes on, summaries of deleted days, late lines and repairs."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elasticsearch import Elasticsearch

from tests.gate import Gate
from tests.old_days import YEAR, records_of, there
from verl_ingest.catalog import metrics
from verl_ingest.index.mappings import STEPS_INDEX
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.retention import due, pins, store
from verl_ingest.retention.due import Index
from verl_ingest.retention.pins import Pin
from verl_ingest.settings import Settings
from verl_ingest.summarise import writing
from verl_ingest.summarise.run import bring_up_to_date


def found(server: Elasticsearch, name: str) -> Index:
    return next(index for index in store.indices(server) if index.name == name)


def delete(server: Elasticsearch, index: Index) -> due.Verdict:
    return store.delete(server, index, Settings())


# What happens meanwhile.


def test_a_run_pinned_after_the_look_is_kept(own_days, fill_day):
    fill_day(records_of(1), "late-pin")
    index = found(own_days, records_of(1))
    assert store.judge(own_days, index, Settings()).word == "due"
    pins.add(own_days, Pin("late-pin", "2026-01-01T00:00:00.000Z"))
    verdict = delete(own_days, index)
    assert (verdict.word, verdict.why) == ("kept", "pinned by late-pin")
    assert there(own_days) == {records_of(1)}


def test_an_index_made_anew_after_the_look_is_kept(own_days, fill_day):
    fill_day(records_of(1), "anew")
    index = found(own_days, records_of(1))
    own_days.indices.delete(index=records_of(1))
    assert delete(own_days, index).word == "gone"
    fill_day(records_of(1), "anew")
    assert (delete(own_days, index).word, delete(own_days, index).why) == ("kept", "made anew meanwhile, by late lines")
    assert there(own_days) == {records_of(1)}


def test_two_at_once_delete_each_index_once(own_days, fill_day):
    for day in range(1, 9):
        fill_day(records_of(day), "twice")
    indices = store.indices(own_days)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: [delete(own_days, index).word for index in indices], range(2)))
    assert all(words in (("deleted", "gone"), ("gone", "deleted")) for words in zip(*both, strict=True))
    assert there(own_days) == set()


def test_a_server_that_goes_away_half_way_is_said_and_the_next_run_goes_on(
    ask, own_days, fill_day, in_days, monkeypatch, elasticsearch_url
):
    for day in (1, 2, 3):
        fill_day(records_of(day), "half-way")
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
    assert there(own_days) == {records_of(2), records_of(3)}
    gate.open()
    monkeypatch.setattr(store, "delete", plain)
    assert ask("retention", "--days", "30").code == 0
    gate.close()
    assert there(own_days) == set()


# What comes after.


def test_step_summaries_go_with_their_days(ask, own_days, fill_day, in_days):
    for day in (1, 2):
        fill_day(records_of(day), f"summed-{day}")
        with ElasticStore(own_days).open(f"summed-{day}") as run:
            bring_up_to_date(run, own_days, catalogue=metrics.load())
    ask("pin", "summed-2")
    in_days(31)
    assert ask("retention", "--days", "30").out.endswith("; 1 step summary of days that are gone.\n")
    left = own_days.search(index=STEPS_INDEX, query={"terms": {"run_id": ["summed-1", "summed-2"]}})["hits"]["hits"]
    assert [hit["_source"]["run_id"] for hit in left] == ["summed-2"]
    ask("unpin", "summed-2")
    ask("retention", "--days", "30")
    assert own_days.count(index=STEPS_INDEX, query={"prefix": {"run_id": "summed-"}})["count"] == 0


def test_summaries_are_removed_page_by_page(own_days, fill_day, monkeypatch):
    monkeypatch.setattr(writing, "PAGE", 2)
    fill_day(records_of(1), *(f"paged-{number}" for number in range(5)))
    for number in range(5):
        with ElasticStore(own_days).open(f"paged-{number}") as run:
            bring_up_to_date(run, own_days, catalogue=metrics.load())
    own_days.indices.delete(index=records_of(1))
    assert writing.remove_days(own_days) >= 5
    assert own_days.count(index=STEPS_INDEX, query={"prefix": {"run_id": "paged-"}})["count"] == 0


def test_late_lines_of_a_deleted_day_come_back_and_stay_as_long_again(ask, own_days, in_days, tmp_path):
    file = log(tmp_path / "late-again", steps=3)
    assert ask("load", str(file)).code == 0
    in_days(31)
    ask("retention", "--days", "30")
    assert there(own_days) == set()
    assert ask("audit", str(file)).code == 1
    assert ask("audit", str(file), "--repair").code == 0
    assert there(own_days) == {records_of(1)}
    in_days(29)  # from now, when it came back
    ask("retention", "--days", "30")
    assert there(own_days) == {records_of(1)}
    own_days.indices.refresh(index=records_of(1))
    assert own_days.count(index=records_of(1))["count"] == 3


def test_a_merged_index_takes_late_lines_and_repairs(ask, own_days, tmp_path):
    file = log(tmp_path / "merged", steps=4)
    assert ask("load", str(file)).code == 0
    own_days.indices.forcemerge(index=records_of(1), max_num_segments=1)  # all that the warm phase does
    hit = own_days.search(index=records_of(1), size=1)["hits"]["hits"][0]
    own_days.delete(index=records_of(1), id=hit["_id"], refresh=True)
    assert "1 line is missing" in ask("audit", str(file)).err
    assert ask("audit", str(file), "--repair").code == 0
    log(tmp_path / "merged", steps=6)
    assert ask("load", str(file)).code == 0
    own_days.indices.refresh(index=records_of(1))
    assert own_days.count(index=records_of(1))["count"] == 6


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
