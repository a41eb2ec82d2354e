import pytest
from elasticsearch import Elasticsearch

from tests.documents import START, Document, line, record, sample
from verl_ingest.errors import NotFound, StoreError
from verl_ingest.query import elastic
from verl_ingest.query.store import Condition, Key, Lines, Mark, Moment, Segment
from verl_ingest.query.times import milliseconds

HOSTILE = r"r'17 #a!b/中|\"*?"
DAY = 86_400


def steps_of(run: str, steps: int, *, ranks: int = 2, every: float = 10, **fields) -> list[Document]:
    return [
        record(run, step * every, step=step, rank=rank, stage="actor", metrics={"loss": float(step + rank)}, **fields)
        for step in range(1, steps + 1)
        for rank in range(ranks)
    ]


def test_an_unknown_run_is_not_found(store):
    with pytest.raises(NotFound, match="There is no run 'nobody'"), store.open("nobody"):
        pass


def test_more_lines_than_a_search_may_return_are_all_read(store, write):
    write(line("many-lines", number / 1_000, f"line {number}") for number in range(12_345))
    with store.open("many-lines") as run:
        messages = [document["message"] for document in run.lines(Lines())]
    assert messages == [f"line {number}" for number in range(12_345)]


def test_records_of_one_time_come_in_the_order_of_their_file(store, write, monkeypatch):
    monkeypatch.setattr(elastic, "PAGE", 3)
    documents = [record("same-time", 0, step=1, rank=0, stage="actor", metrics={"loss": float(n)}) for n in range(10)]
    write(reversed(documents))
    with store.open("same-time") as run:
        assert [document["metrics"]["loss"] for document in run.records(1)] == list(range(10))


def test_only_the_days_of_the_run_are_asked(templated: Elasticsearch, write, monkeypatch):
    write([record("two-days", 0, step=1), record("two-days", DAY, step=2), record("third-day", 2 * DAY, step=1)])
    asked = []
    opener = templated.open_point_in_time
    monkeypatch.setattr(templated, "open_point_in_time", lambda **how: asked.append(how["index"]) or opener(**how))
    with elastic.ElasticStore(templated).open("two-days") as run:
        assert run.steps(size=9, newest_first=False) == [1, 2]
    assert sorted(asked[0].split(",")) == ["verl-2026.05.28", "verl-2026.05.29"]


def test_a_document_that_stands_in_two_days_comes_once(store, write, templated):
    document = line("twice", 0, "hello", step=1)
    write([document])
    other = dict(document) | {"@timestamp": "2026-05-29T00:00:00.000Z"}
    write([other])
    with store.open("twice") as run:
        assert len(run.lines(Lines())) == 1
        assert len(run.records(1)) == 1


def test_a_snapshot_does_not_change_while_it_is_read(store, write):
    write(steps_of("snapshot", 3))
    with store.open("snapshot") as run:
        write(steps_of("snapshot", 5))
        assert run.steps(size=9, newest_first=True) == [3, 2, 1]
    with store.open("snapshot") as run:
        assert run.steps(size=9, newest_first=True) == [5, 4, 3, 2, 1]


def test_steps_are_listed_from_either_end(store, write):
    write([*steps_of("ends", 9), line("ends", 500, "after the last step", step=10)])
    with store.open("ends") as run:
        assert run.steps(size=2, newest_first=True) == [9, 8]
        assert run.steps(low=4, size=2, newest_first=False) == [4, 5]
        assert run.steps(low=4, high=4, size=5, newest_first=False) == [4]
        assert run.steps(low=10, size=1, newest_first=False) == []


def test_any_run_name_and_any_metric_name_works(store, write):
    names = ["a/b", "a.b", "a_b", "val[1]>x", "Clip Fraction", "奖励", "timing(s)/gen"]
    metrics = {name: float(number) for number, name in enumerate(names)}
    write([record(HOSTILE, 10 * step, step=step, rank=0, stage="actor", metrics=metrics) for step in (1, 2)])
    assert HOSTILE in store.run_ids("r'17 #")
    keys = [Key(name, "actor", True) for name in names]
    with store.open(HOSTILE) as run:
        assert run.records(2)[0]["metrics"] == metrics
        history = run.history([Segment(1, 2)], [Segment(1, 2)], keys)
        assert {key.name: levels[2].mean for key, levels in history.levels.items()} == metrics
        assert {key.name: of[1][0] for key, of in run.rank_values([Segment(1, 2)], keys).items()} == metrics


def test_history_is_weighted_by_stage_and_by_attempt(store, write):
    def both(step, at, values):
        for rank, (value, weight) in enumerate(values):
            yield record("levels", at, step=step, rank=rank, stage="reward", weight=weight, metrics={"score": value})

    write(
        [
            *both(1, 10, [(0.8, 100), (0.6, 200)]),
            *both(2, 20, [(9.0, 1), (9.0, 1)]),
            *both(2, 200, [(1.0, 1), (3.0, 3)]),
            record("levels", 20, step=2, stage="trainer", metrics={"score": 7.0}),
        ]
    )
    ranked, driver = Key("score", "reward", True), Key("score", "trainer", False)
    segments = [Segment(1, 1, until=START + 100_000), Segment(2, 2, since=START + 100_000)]
    with store.open("levels") as run:
        levels = run.history(segments, segments, [ranked, driver]).levels
        assert levels[ranked][1].mean == pytest.approx(2 / 3)
        assert (levels[ranked][2].mean, levels[ranked][2].low, levels[ranked][2].high) == (2.5, 1.0, 3.0)
        assert levels[driver] == {}


def test_presence_tells_ranks_records_ends_and_hosts(store, write):
    hosts = [
        record("presence", 10 + rank, step=1, rank=rank, stage="actor", host=f"n{rank}", metrics={}) for rank in (0, 1)
    ]
    write([*hosts, record("presence", 15, step=1, metrics={"x": 1.0})])
    with store.open("presence") as run:
        presence = run.history([Segment(1, 1)], [Segment(1, 1)], [Key("x", None, False)]).presence
    assert set(presence) == {"actor", None}
    assert presence["actor"].ranks == {0, 1}
    assert presence["actor"].records == {1: 2}
    assert presence["actor"].ends == {1: START + 11_000}
    assert presence["actor"].host_times == {1: {"n0": START + 10_000, "n1": START + 11_000}}


def test_lines_are_narrowed(store, write):
    write(
        [
            line("narrow", 1, "NaN in the reward", level="warning", rank=5, step=3),
            line("narrow", 2, "all is well", level="info", rank=5, step=3),
            line("narrow", 3, "out of memory", level="error", rank=3, step=4),
            line("narrow", 4, "", **{"error.type": "OOM", "error.message": "no space"}, step=4),
            record("narrow", 5, kind="event", event="resume"),
            record("narrow", 6, step=4, rank=5, stage="actor", metrics={"loss": 1.0}),
        ]
    )

    def found(**wanted) -> list[int]:
        with store.open("narrow") as run:
            return [(milliseconds(document) - START) // 1_000 for document in run.lines(Lines(**wanted))]

    assert found() == [1, 2, 3, 4, 5]
    assert found(rank=5) == [1, 2, 4]  # whose the traceback is, the reader finds out
    assert found(levels=["warning", "error"]) == [1, 3, 4]
    assert found(levels=["warning"]) == [1]
    assert found(steps=(4, 9)) == [3, 4]
    assert found(since=START + 2_000, until=START + 3_000) == [2, 3]
    assert found(text="MEMOR") == [3, 5]
    assert found(text="no spa") == [4, 5]


def test_the_step_at_a_time(store, write):
    write(
        [
            *steps_of("at", 5),
            record("at", 100, step=3, rank=7, stage="rollout", metrics={"latency": 1.0}),
            line("at", 20, "no step of its own", step=99),
        ]
    )
    with store.open("at") as run:
        assert run.step_at(START + 25_000, {}) == 2
        assert run.step_at(START + 99_000, {}) == 5
        assert run.step_at(START, {}) == 1
        assert run.step_at(START + 25_000, {"stage": "rollout"}) == 3
        assert run.step_at(START + 25_000, {"metric": "latency", "rank": 7}) == 3
        assert run.step_at(START, {"rank": 8}) is None
        assert run.last_time() == START + 100_000


def test_troubled_steps_have_errors_or_values_that_are_not_finite(store, write):
    write(
        [
            *steps_of("trouble", 5),
            record("trouble", 20, step=2, rank=0, stage="actor", nonfinite=["loss"], flags=["nan:loss"]),
            line("trouble", 40, "boom", step=4, level="error"),
            line("trouble", 50, "hm", step=5, level="warning"),
        ]
    )
    with store.open("trouble") as run:
        assert run.troubled_steps([Segment(1, 5)]) == [2, 4]
        assert run.troubled_steps([Segment(3, 5)]) == [4]


def test_samples_come_with_the_lowest_scores_first(store, write):
    scores = [0.5, 0.1, None, -3.0, 0.9]
    write(
        [
            *(sample("samples", n, 1, score, uid=str(n)) for n, score in enumerate(scores)),
            sample("samples", 0, 2, -99.0),
        ]
    )
    with store.open("samples") as run:
        found = run.samples(Segment(1, 1), 3)
        assert [document["sample.score"] for document in found] == [-3.0, 0.1, 0.5]
        assert run.samples(Segment(1, 1, since=START + 4_000), 3)[0]["sample.uid"] == "4"


def test_shares(store, write):
    write(
        [
            *(sample("share", n, 1, score) for n, score in enumerate([0.0, 0.05, 0.1, 1.0, None])),
            sample("share", 9, 1, 0.0, split="val"),
            sample("share-other", 9, 1, 0.0),
            record("share", 5, step=1, rank=0, metrics={"kl": 0.5}),
            record("share", 5, step=1, rank=1, metrics={"KL": 0.1}),
            record("share", 6, step=1, rank=1, nonfinite=["kl"]),
        ]
    )

    def ask(*names: str, operator: str = "<", number: float = 0.1, until: float = 60, run: str | None = "share"):
        condition = Condition("x", names, operator, number)
        return store.share(condition, since=START, until=START + round(until * 1_000), run_id=run)

    scores = ask()
    assert (scores.n, scores.hits, scores.parts) == (5, 3, {"train": 4, "val": 1})
    assert ask(until=2).n == 3
    assert ask(run=None).n >= 6
    assert ask(operator="<=").hits == 4
    kl = ask("kl", "KL", operator=">=")
    assert (kl.n, kl.hits, kl.nonfinite) == (2, 2, 1)
    assert ask("kl", "KL", operator="==").hits == 1
    assert ask("kl", "KL", operator="!=").hits == 1
    assert ask("nothing").n == 0


def test_runs_are_listed_with_their_newest_step_and_last_error(store, write):
    write([*steps_of("listed", 5), *steps_of("listed", 2, every=100), line("listed", 90, "boom", level="error")])
    [row] = [row for row in store.runs() if row.run_id == "listed"]
    assert (row.records, row.first, row.last) == (15, START + 10_000, START + 200_000)
    assert row.newest_step == Mark(START + 200_000, dated=True, step=2)
    assert row.newest_error == Mark(START + 90_000, dated=True, step=None)
    assert store.paces({"listed": 5, "nothing": 1}) == {"listed": [100.0, 10.0, 10.0], "nothing": []}
    assert store.paces({}) == {}
    moments = [Moment("listed", 2, START + 150_000), Moment("listed", 2, START), Moment("listed", 77, START)]
    assert store.values(moments, ["loss", "none"]) == [{"loss": 2.5}, {"loss": 2.5}, {}]
    assert store.values([], ["loss"]) == []


def test_a_copied_sample_file_does_not_say_where_a_run_stands(store, write):
    write([*steps_of("copied", 5), sample("copied", 10**6, 1, 0.5) | {"time_source": "estimated"}])
    [row] = [row for row in store.runs() if row.run_id == "copied"]
    assert row.newest_step.step == 5


def test_what_runs_said_of_their_setup_comes_without_the_rest_of_a_configuration(store, write):
    config = {"trainer.total_training_steps": 300, "trainer.nnodes": 2}
    write(
        [
            line("set-up", 2, "Total steps: 300, num_warmup_steps: 0"),
            record("set-up", 1, kind="event", event="config", extra={"world_size": 8, "config": config}),
            record("set-up", 3, kind="event", event="resume"),
            line("set-up-too", 2, "steps, in total: 5"),
        ]
    )
    found = store.setups(["set-up", "set-up-too"])
    kept = {"world_size": 8, "config": {"trainer.total_training_steps": 300}}
    assert [document.get("extra") for document in found["set-up"]] == [kept, None]
    assert found["set-up-too"] == []
    with store.open("set-up") as run:
        assert [document.get("extra") for document in run.setup()] == [kept, None]


def test_the_newest_run(store, write):
    write([record("newest", 20 * 365 * DAY, step=1)])
    assert store.newest_run() == "newest"


def test_where_no_index_is_there_is_no_run(store, monkeypatch):
    monkeypatch.setattr(elastic, "ALL_PATTERN", "no-index-of-the-kit-*")
    with pytest.raises(NotFound, match="There is no run 'any'"), store.open("any"):
        pass


def test_a_search_that_fails_is_not_taken_for_an_empty_answer(store, write, monkeypatch):
    write(steps_of("failing", 1))
    monkeypatch.setattr(elastic.history, "presence", lambda *_: {"aggs": {"x": {"terms": {"field": "message"}}}})
    with store.open("failing") as run, pytest.raises(StoreError, match="could not answer a search"):
        run.history([Segment(1, 1)], [Segment(1, 1)], [Key("loss", "actor", True)])
