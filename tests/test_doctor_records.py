"""The doctor's checks of the records: documents on a real server, those of a day long ago, well and ill."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch, helpers

from tests import fluentbit
from tests.documents import START, Document, index_of, line, record
from tests.waiting import wait_for
from verl_ingest.checks import day, records
from verl_ingest.checks.check import Check
from verl_ingest.checks.day import Day, OfRun
from verl_ingest.query.times import iso
from verl_ingest.settings import Settings

pytestmark = pytest.mark.server

# A day before those of all other tests, so that none of their records is of it.
DAY_S = 300 * 86_400
NOW = START - DAY_S * 1_000
Write = Callable[[Iterable[Document]], None]


@pytest.fixture
def look(elasticsearch_url: str) -> Callable[..., dict[str, Check]]:
    """Return all checks by name; `after_s` is how long after the documents' time it is."""

    def checks(after_s: float = 0, **settings) -> dict[str, Check]:
        chosen = Settings(elasticsearch_url=elasticsearch_url, **settings)
        return {check.name: check for check in records.check(chosen, now=NOW + round(after_s * 1_000))}

    return checks


def of_run(name: str, steps: int = 14, *, ranks: int = 2, every_s: float = 30, **fields) -> list[Document]:
    """Return metric records of every rank, the last one at NOW; rank 1 is on host b, the others on a."""
    return [
        record(
            name,
            (step - steps) * every_s - DAY_S,
            **{
                "step": step,
                "rank": rank,
                "stage": "actor",
                "host": "b" if rank == 1 else "a",
                "metrics": {"loss": 0.5},
                **fields,
            },
        )
        for step in range(1, steps + 1)
        for rank in range(ranks)
    ]


def test_all_is_well(write: Write, look) -> None:
    write(of_run("doctor-well"))
    found = look(after_s=5)
    assert found.pop("times").verdict == "watch"  # those of other tests lie in the future
    assert {check.verdict for check in found.values()} == {"fine"}
    assert found["records"].found == "Newest: 5.0 s old, of doctor-well; 28 records in the 1 d up to it."
    assert found["lag of hosts"].found == "2 hosts of 1 running run send."
    assert found["non-finite"].found == "None with a NaN or an infinity."


def test_no_record(look) -> None:
    found = look(after_s=-20 * 365 * 86_400)
    assert [check.verdict for check in found.values()] == ["watch"]
    assert found["records"].remedy.startswith("load a run")


def test_what_is_older_than_a_day_does_not_count(write: Write, look) -> None:
    write([record("doctor-old", -DAY_S - 86_500, metrics={"x": 1.0}, nonfinite=["loss"]), *of_run("doctor-new")])
    assert look()["records"].found.endswith("; 28 records in the 1 d up to it.")


class TestOneSearch:
    """What the one search over the day tells of."""

    def test_records_in_the_future_and_guessed_zones(self, write: Write, look) -> None:
        late = line("doctor-late", 3_600 - DAY_S, "x")
        write([*of_run("doctor-zone", flags=["zone_assumed"]), late])
        found = look()["times"]
        assert (found.verdict, "in the future" in found.found) == ("watch", True)
        assert "28 records of a guessed time zone" in found.found
        assert found.remedy == "set `timezone` to the zone that the logs are written in"

    @pytest.mark.parametrize(("share", "verdict"), [(1, "watch"), (0, "fine")])
    def test_non_finite(self, write: Write, look, share: int, verdict: str) -> None:
        write(of_run("doctor-finite"))
        write(record("doctor-finite", -DAY_S, nonfinite=["kl"], rank=0, step=14) for _ in range(share))
        found = look()["non-finite"]
        assert found.verdict == verdict
        if verdict == "watch":
            assert found.found == "doctor-finite: 1 of 29 metric records (3.45 %) with a NaN or an infinity, most kl 1."

    def test_a_run_that_is_ill_among_many_that_are_well(self, write: Write, look) -> None:
        write(of_run("doctor-sound", steps=200))
        write([*of_run("doctor-ill", steps=1), record("doctor-ill", -DAY_S - 1, kind="unparsed", message="?")])
        write([record("doctor-ill", -DAY_S - 1, nonfinite=["kl"], rank=0, step=1)])
        found = look()
        assert [found[name].verdict for name in ("non-finite", "unparsed")] == ["watch", "wrong"]
        assert found["unparsed"].found == "doctor-ill: 1 of 4 records (25 %) of a line that was not understood."

    @pytest.mark.parametrize(("lines", "verdict"), [(0, "fine"), (1, "watch"), (20, "wrong")])
    def test_unparsed(self, write: Write, look, lines: int, verdict: str) -> None:
        write(of_run("doctor-unparsed"))
        write(record("doctor-unparsed", -DAY_S, kind="unparsed", message="?") for _ in range(lines))
        found = look()["unparsed"]
        shown = "" if verdict == "fine" else "`verl-ingest logs doctor-unparsed` shows them"
        assert (found.verdict, found.remedy.partition(";")[0]) == (verdict, shown)

    def test_fields_that_no_search_finds(self, write: Write, look) -> None:
        write([*of_run("doctor-ignored"), line("doctor-ignored", -DAY_S, "x", **{"log.logger": "x" * 9_000})])
        found = look()["unsearchable"]
        assert (found.verdict, found.found) == (
            "watch",
            "1 record with fields that no search finds, most log.logger 1.",
        )

    def test_flags(self, write: Write, look) -> None:
        write(of_run("doctor-flags", flags=["truncated:message", "number_from_text:step"]))
        assert look()["flags"].found == "Records by flag: truncated 28."
        assert look()["flags"].verdict == "watch"
        write(of_run("doctor-flags", flags=["normalizer_error"]))
        assert look()["flags"].verdict == "wrong"

    def test_lines_that_rules_left_out(self, write: Write, look) -> None:
        dropped = {"kind": "event", "event": "dropped", "stage": "system"}
        write([record("doctor-drop", -DAY_S, metrics={"progress": 40.0, "shapes": 2.0}, **dropped)])
        found = look(drop=[{"name": "shapes", "level": "debug"}])["left out"]
        assert found.found == "42 lines by rule, as agents report: progress 40, shapes 2."

    def test_a_large_day_is_looked_at_in_part(self, write: Write, look, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(day, "MOST", 14)
        write(of_run("doctor-large"))
        assert "in the 12 h up to it" in look()["records"].found


class TestNewestRuns:
    def test_a_host_that_has_fallen_silent(self, write: Write, look) -> None:
        documents = of_run("doctor-silent", steps=40)
        write([document for document in documents if document["host.name"] == "a" or document["step"] < 25])
        found = look(after_s=5)["lag of hosts"]
        assert (found.verdict, found.found) == (
            "wrong",
            "No record of b (doctor-silent) for 8 min, while others of the run send.",
        )
        assert look(after_s=3_600)["lag of hosts"].found == "No run runs."  # over: nobody lags

    def test_a_slow_run_is_no_lag(self, write: Write, look) -> None:
        documents = of_run("doctor-slow", steps=40, every_s=400)
        write([document for document in documents if document["host.name"] == "a" or document["step"] < 39])
        assert look(after_s=5)["lag of hosts"].verdict == "fine"

    def test_a_missing_rank(self, write: Write, look) -> None:
        write(document for document in of_run("doctor-missing") if document["rank"] == 0 or document["step"] < 13)
        found = look()["missing ranks"]
        assert (found.verdict, found.found) == ("watch", "Missing: rank 1 of doctor-missing in actor, step 13.")
        assert found.remedy.startswith("`verl-ingest why RUN`")

    def test_a_rank_that_has_been_silent_for_long(self, write: Write, look) -> None:
        write(document for document in of_run("doctor-mute", 40) if document["rank"] == 0 or document["step"] < 21)
        found = look()["missing ranks"]
        assert (found.verdict, found.found) == ("watch", "Missing: rank 1 of doctor-mute for 10 min.")

    @pytest.mark.parametrize(("ahead_s", "verdict"), [(0.3, "fine"), (2.5, "watch")])
    def test_a_clock_that_is_ahead(self, write: Write, look, ahead_s: float, verdict: str) -> None:
        documents = of_run("doctor-clock")
        ahead = of_run("doctor-clock")
        for each, moved in zip(documents, ahead, strict=True):
            if each["host.name"] == "b":
                step = each["step"]
                shifted = record("x", (step - 14) * 30 - DAY_S + ahead_s)["@timestamp"]
                each["@timestamp"] = moved["@timestamp"] = shifted
        write(documents)
        found = look(after_s=3)["clocks"]
        assert found.verdict == verdict
        assert f"b +{ahead_s:.2f} s" in found.found

    def test_an_earlier_attempt_is_no_clock_that_is_behind(self, write: Write, look) -> None:
        earlier = [document for document in of_run("doctor-again") if document["host.name"] == "b"]
        for document in earlier:
            document["@timestamp"] = record("x", (document["step"] - 14) * 30 - DAY_S - 7_200)["@timestamp"]
        write([*of_run("doctor-again", ranks=1), *earlier])
        assert look()["clocks"].found == "They differ by less than 1 s."

    def test_driver_metrics_only(self, write: Write, look) -> None:
        write(of_run("doctor-driver", ranks=1, rank=None, stage="trainer"))
        found = look()["metrics of ranks"]
        assert found.verdict == "watch"
        assert found.found.startswith("Driver metrics only: doctor-driver.")

    def test_ranks_that_never_log(self, write: Write, look) -> None:
        config = {"kind": "event", "event": "config", "extra": {"world_size": 8}}
        write([*of_run("doctor-few"), record("doctor-few", -500 - DAY_S, **config)])
        found = look()["metrics of ranks"]
        assert (found.verdict, found.found) == ("watch", "Not every rank logs: 2 ranks of 8 (doctor-few).")


class TestTwice:
    def test_lines_that_two_agents_send(self, write: Write, look, elasticsearch: Elasticsearch) -> None:
        documents = of_run("doctor-twice")
        write(documents)
        assert look()["written twice"].verdict == "fine"
        write(documents[:10])  # as after a restart
        found = look()["written twice"]
        assert (found.verdict, found.found) == ("fine", "10 of 28 records looked at were written more than once.")
        write(documents[10:])
        found = look()["written twice"]
        assert found.verdict == "watch"
        assert found.found.startswith(
            "Of 28 records looked at, most were written more than once: doctor-twice 2 times."
        )

    def test_two_real_agents_on_one_folder(
        self, fluent_bit: str, templated: Elasticsearch, elasticsearch_url: str, tmp_path: Path, look
    ) -> None:
        folder = tmp_path / "runs" / "doctor-shared"
        folder.mkdir(parents=True)
        moments = [{"step": step, "loss": 0.5, "timestamp_ns": (NOW - step) * 1_000_000} for step in range(20)]
        (folder / "rank0.jsonl").write_text("".join(f"{json.dumps(moment)}\n" for moment in moments))

        def delivered(agent: fluentbit.Agent) -> bool:
            return agent.metrics()["output"]["records"]["proc_records"] == len(moments)

        for name in ("a", "b"):
            settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / f"state-{name}", url=elasticsearch_url)
            with fluentbit.running(fluent_bit, tmp_path / name, settings) as agent:
                wait_for(lambda sender=agent: delivered(sender), timeout=60, what="delivery of every line")
        templated.indices.refresh(index="verl-*")
        try:
            found = look()["written twice"]
        finally:
            index = f"verl-{iso(NOW)[:10].replace('-', '.')}"
            ours = templated.search(index=index, query={"term": {"run_id": "doctor-shared"}}, size=100, source=False)
            for hit in ours["hits"]["hits"]:
                templated.delete(index=hit["_index"], id=hit["_id"])
            templated.indices.refresh(index=index)
        assert found.verdict == "watch"
        assert "Of 20 records looked at, most were written more than once: doctor-shared 2 times." in found.found

    def test_a_line_in_two_days(self, write: Write, look, elasticsearch: Elasticsearch) -> None:
        documents = [line("doctor-days", -DAY_S - number, "x", time_source="read") for number in range(3)]
        write([*of_run("doctor-days"), *documents])
        assert look()["in two days"].found == "None of 3 lines without a time looked at."
        earlier = documents[0] | {"@timestamp": record("x", -DAY_S - 86_400)["@timestamp"]}
        assert index_of(earlier) != index_of(documents[0])
        helpers.bulk(
            elasticsearch,
            [{"_index": index_of(earlier), "_id": earlier["event_id"], "_source": earlier}],
            refresh=True,
        )
        try:
            found = look()["in two days"]
        finally:
            elasticsearch.delete(index=index_of(earlier), id=earlier["event_id"], refresh=True)
        assert (found.verdict, found.found) == (
            "watch",
            "1 of 3 lines without a time looked at stand in two days' indices (doctor-days).",
        )


def test_a_day_of_no_record_in_the_future() -> None:
    run = OfRun("r", 1, 0, 0, 0, {}, 0, 1_000, {}, {})
    well = Day(0, 1_000, 0, records=1, ignored=0, ignored_names={}, flags={}, dropped={}, runs=[run])
    assert {check.name: check.verdict for check in records.judge(well, now=1_000)}["times"] == "fine"
    ahead = {check.name: check for check in records.judge(replace(well, ahead=1), now=1_000)}["times"]
    assert (ahead.verdict, ahead.found) == ("watch", "1 record in the future.")
