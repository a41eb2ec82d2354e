"""Step summaries: what they say, when they stand for the records, and that both say the same."""

import itertools
from dataclasses import replace

import orjson
import pytest
from elasticsearch import Elasticsearch, helpers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.documents import START, Document, index_of, record
from tests.summarised import CATALOGUE, loss, remove_summaries
from verl_ingest.context import attempts
from verl_ingest.context.dates import settled
from verl_ingest.index import mappings
from verl_ingest.query import elastic, summaries
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.query.store import History, Key, MadeOf, Segment
from verl_ingest.query.summaries import Summary
from verl_ingest.summarise import step as summarise_step
from verl_ingest.summarise import writing
from verl_ingest.summarise.run import Changes, bring_up_to_date

PLANTED = (50, 61, 88, 100, 128, 137, 163, 175, 191, 201, 206, 240)
EVERYTHING = [Segment(0, 10_000)]


def stored(client: Elasticsearch, run_id: str) -> list[Document]:
    """Return the documents of a run's summaries in order of step and attempt."""
    found = client.search(index=mappings.STEPS_PATTERN, query={"term": {"run_id": run_id}}, size=1_000)["hits"]["hits"]
    documents = (hit["_source"] for hit in found)
    return sorted(documents, key=lambda document: (document["step"], document["attempt_number"]))


LOSS = Key("loss", "actor", True)


def means(store: ElasticStore, run_id: str, segments: list[Segment] = EVERYTHING) -> dict[int, float]:
    with store.open(run_id) as run:
        return {step: level.mean for step, level in run.history(segments, [], [LOSS]).levels[LOSS].items()}


@pytest.fixture
def steps_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose levels are read from records."""
    asked: list[int] = []
    body = elastic.history.levels

    def levels(run_id, segments, keys):
        asked.extend(step for segment in segments for step in range(segment.first, min(segment.last, 20) + 1))
        return body(run_id, segments, keys)

    monkeypatch.setattr(elastic.history, "levels", levels)
    return asked


# What a summary says.


def test_a_summary_has_the_spread_over_the_ranks_and_what_each_stage_logged():
    documents = [
        record("made", 10, step=3, rank=0, stage="actor", host="n0", weight=1, metrics={"kl_divergence": 0.01}),
        record("made", 12, step=3, rank=1, stage="actor", host="n1", weight=3, metrics={"kl_divergence": 0.05}),
        record("made", 14, step=3, rank=1, stage="actor", host="n1") | {"time_source": "read"},
        record("made", 15, step=3, stage="trainer", metrics={"kl_divergence": 9.0, "lr": 1e-6}),
    ]
    made_of = MadeOf(4, 6)
    document = summarise_step.summarise(documents, attempt=2, made_of=made_of, catalogue=CATALOGUE).document()
    summary = document.pop("summary")
    assert document == {
        "@timestamp": documents[3]["@timestamp"],
        "run_id": "made",
        "step": 3,
        "step_key": "made|3",
        "attempt_number": 2,
        "records": 4,
        "metrics": {"kl_divergence": pytest.approx(0.04), "lr": 1e-6},
    }
    assert (summary["first"], summary["last"], summary["writes"]) == (START + 10_000, START + 15_000, 6)
    mean, std = pytest.approx(0.04), pytest.approx(0.0003**0.5)
    assert summary["metrics"][0] == ["kl_divergence", "actor", True, mean, std, 0.01, 0.05, 2, 1]
    assert summary["stages"] == [
        ["actor", [(0, 1)], 3, START + 12_000, {"n0": START + 10_000, "n1": START + 13_000}],
        ["trainer", [], 1, START + 15_000, {}],
    ]


def test_summaries_are_found_by_step_and_mean_and_by_no_search_over_the_records(templated, store, write, summarise):
    write(loss("found", step, rank, float(rank)) for step in (1, 2) for rank in (0, 1))
    assert summarise("found") == Changes(new=[1, 2])
    answer = templated.search(
        index=mappings.STEPS_INDEX,
        query={"bool": {"filter": [{"term": {"run_id": "found"}}, {"range": {"step": {"gte": 2}}}]}},
        aggs={"mean": {"avg": {"field": "metrics.loss"}}, "records": {"sum": {"field": "records"}}},
    )
    assert answer["aggregations"] == {"mean": {"value": 0.5}, "records": {"value": 2.0}}
    found = templated.search(index=mappings.ALL_PATTERN, query={"term": {"run_id": "found"}}, size=10)["hits"]["hits"]
    assert [hit["_source"]["kind"] for hit in found] == ["metric"] * 4


# When it is used.


def test_fresh_summaries_stand_for_the_records(store, write, summarise, steps_read):
    write(loss("fresh", step, 0, float(step)) for step in (1, 2, 3))
    summarise("fresh")
    assert means(store, "fresh") == {1: 1.0, 2: 2.0, 3: 3.0}
    assert steps_read == []


def test_of_steps_with_late_records_the_records_are_read_until_the_summary_is_made_again(
    store, write, summarise, steps_read
):
    write(loss("late", step, 0, float(step)) for step in (1, 2, 3, 4))
    summarise("late")
    write([loss("late", 2, 1, 4.0), loss("late", 5, 0, 5.0)])
    expected = {1: 1.0, 2: 3.0, 3: 3.0, 4: 4.0, 5: 5.0}
    assert means(store, "late") == expected
    assert steps_read == [2, 5]
    assert summarise("late") == Changes(new=[5], again=[2], kept=3)
    steps_read.clear()
    assert means(store, "late") == expected
    assert steps_read == []


def test_a_record_that_is_written_again_with_another_value_makes_its_summary_stale(store, write, summarise, steps_read):
    document = loss("rewritten", 1, 0, 1.0)
    write([document, loss("rewritten", 2, 0, 2.0)])
    summarise("rewritten")
    write([document | {"metrics": {"loss": 7.0}}])
    assert means(store, "rewritten") == {1: 7.0, 2: 2.0}
    assert steps_read == [1]


def test_steps_without_a_summary_are_read_from_the_records(store, write, summarise, steps_read, templated):
    write(loss("partly", step, 0, float(step)) for step in range(1, 10))
    summarise("partly")
    with store.open("partly") as run:
        writing.remove(templated, [found for found in run.summaries(EVERYTHING) if found.step in (3, 4, 8)])
    writing.refresh(templated)
    assert means(store, "partly") == {step: float(step) for step in range(1, 10)}
    assert steps_read == [3, 4, 8]


def test_a_run_whose_records_were_deleted_and_loaded_anew_is_not_told_by_its_old_summaries(
    store, write, summarise, templated
):
    old = [loss("anew", step, 0, float(step)) for step in (1, 2, 3)]
    write(old)
    summarise("anew")
    gone = [{"_op_type": "delete", "_index": index_of(document), "_id": document["event_id"]} for document in old]
    helpers.bulk(templated, gone, refresh=True)
    write([loss("anew", 2, 0, 20.0)])
    assert means(store, "anew") == {2: 20.0}
    assert summarise("anew") == Changes(again=[2], removed=2)
    assert [document["metrics"] for document in stored(templated, "anew")] == [{"loss": 20.0}]


def test_a_resume_that_logs_steps_again_gives_them_a_summary_for_each_attempt(
    store, write, summarise, templated, steps_read
):
    write(loss("resumed", step, 0, 1.0, pid=1) for step in (1, 2, 3))
    summarise("resumed")
    write(loss("resumed", step, 0, 2.0, pid=2, at=1_000 + step) for step in (2, 3, 4))
    with store.open("resumed") as run:
        known = attempts.find(run, settled(run.records(4)))
    assert means(store, "resumed", attempts.segments(known, 2, 1, 4)) == {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert steps_read == [2, 3, 4]
    assert summarise("resumed") == Changes(new=[2, 3, 4], kept=3)
    found = [(document["step"], document["attempt_number"]) for document in stored(templated, "resumed")]
    assert found == [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2)]
    steps_read.clear()
    for number, expected in ((1, {1: 1.0, 2: 1.0, 3: 1.0}), (2, {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0})):
        assert means(store, "resumed", attempts.segments(known, number, 1, 4)) == expected
    assert steps_read == []


def test_a_summary_of_another_version_is_not_used(store, write, summarise, steps_read, monkeypatch):
    write([loss("versions", 1, 0, 1.0)])
    current = elastic.summaries.VERSION
    monkeypatch.setattr(elastic.summaries, "VERSION", 0)
    summarise("versions")
    monkeypatch.setattr(elastic.summaries, "VERSION", current)
    assert means(store, "versions") == {1: 1.0}
    assert 1 in steps_read
    assert summarise("versions") == Changes(new=[1])


@pytest.mark.parametrize(
    ("segment", "made_of", "fresh"),
    [
        (Segment(1, 5), MadeOf(4, 60), True),
        (Segment(1, 5, since=100, until=201), MadeOf(4, 60), True),
        (Segment(1, 5, since=101), MadeOf(4, 60), False),
        (Segment(1, 5, until=200), MadeOf(4, 60), False),
        (Segment(1, 5), MadeOf(5, 60), False),
        (Segment(1, 5), MadeOf(4, 61), False),
        (Segment(4, 5), MadeOf(4, 60), False),
    ],
)
def test_a_summary_is_fresh_by_its_count_its_writes_and_its_times(segment, made_of, fresh):
    summary = Summary("any", 1, 3, MadeOf(4, 60), first=100, last=200, metrics={}, stages={})
    assert summaries.is_fresh(summary, segment, {3: made_of}) is fresh


# That it says what the records say.


numbers = st.one_of(st.floats(-1e9, 1e9), st.sampled_from([0.0, 0.1, 0.2, 1e-9, 3.0]))
values = st.dictionaries(st.sampled_from(["loss", "kl", "a/b"]), numbers, max_size=3)
weighted = st.sampled_from([0, 1, 7, 64.5])


@st.composite
def records(draw, run: str, *, since: float, pid: int) -> list[Document]:
    """Draw the records of one attempt: some ranks or a driver, stages, hosts, weights, gaps, values not finite."""
    first = draw(st.integers(1, 4))
    weights = draw(st.sampled_from([st.none(), weighted, st.one_of(st.none(), weighted)]))
    found = []
    for step in range(first, first + draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(0, 4))):
            rank = draw(st.sampled_from([None, 0, 1, 5]))
            document = record(
                run,
                since + step * 10 + draw(st.integers(0, 9_999)) / 1_000,
                step=step,
                rank=rank,
                stage=draw(st.sampled_from([None, "actor", "reward"])),
                host=draw(st.sampled_from([None, "n0", "n1"])),
                pid=pid,
                weight=draw(weights),
                metrics=draw(values),
                nonfinite=draw(st.sampled_from([None, ["kl"]])),
            )
            if draw(st.integers(0, 5)) == 0:
                document["time_source"] = "read"
            found.append(document)
        found.append(record(run, since + step * 10, step=step, rank=0, stage="watched", pid=pid, metrics={"loss": 0.5}))
    return found


runs = itertools.count()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_history_is_the_same_with_and_without_summaries(data, store, templated, write):
    run_id = f"any-history-{next(runs)}"
    before = data.draw(records(run_id, since=0, pid=1))
    resumed = data.draw(st.one_of(st.just([]), records(run_id, since=1_000, pid=2)))
    late = data.draw(st.one_of(st.just([]), records(run_id, since=0, pid=1)))
    write([*before, *resumed])
    with store.open(run_id) as run:
        bring_up_to_date(run, templated, catalogue=CATALOGUE)
    compare(store, run_id)
    write(late)
    compare(store, run_id)
    remove_summaries(templated, run_id)


def compare(store: ElasticStore, run_id: str) -> None:
    """Compare what is read with summaries to what the records alone say, for each attempt and metric."""
    stages = (None, "actor", "reward")
    keys = [Key(*parts) for parts in itertools.product(("loss", "kl", "a/b"), stages, (True, False))]
    with store.open(run_id) as run:
        [newest] = run.steps(size=1, newest_first=True)
        known = attempts.find(run, settled(run.records(newest)))
        for attempt in known:
            segments = attempts.segments(known, attempt.number, 0, newest)
            recent = attempts.segments(known, attempt.number, max(newest - 2, 0), newest)
            assert run.summaries(segments)
            assert_same(run.history(segments, recent, keys), run._history_of_records(segments, recent, keys))


def assert_same(found: History, expected: History) -> None:
    assert found.presence == expected.presence
    assert found.levels.keys() == expected.levels.keys()
    for key, levels in expected.levels.items():
        assert list(found.levels[key]) == list(levels), key
        for step, level in levels.items():
            assert found.levels[key][step].mean == pytest.approx(level.mean, rel=1e-12, abs=1e-6), (key, step)
            assert replace(found.levels[key][step], mean=0.0) == replace(level, mean=0.0), (key, step)


def test_contexts_are_the_same_with_and_without_summaries(context_of, demo, summarise, monkeypatch):
    expected = {number: orjson.dumps(context_of(demo, number).body) for number in PLANTED}
    changes = summarise(demo)
    assert len(changes.new) == 246  # 240 steps, six of them twice

    def refuse(*_):
        raise AssertionError("the records were read")

    monkeypatch.setattr(elastic.history, "levels", refuse)
    monkeypatch.setattr(elastic.history, "presence", refuse)
    for number in PLANTED:
        assert orjson.dumps(context_of(demo, number).body) == expected[number], number
