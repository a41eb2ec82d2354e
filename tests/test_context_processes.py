import pytest

from tests.documents import line, record
from verl_ingest.context import lines, processes, search
from verl_ingest.query.store import Process

REMOTE = "ray::TaskRunner.run() (pid=9, ip=192.0.2.2)\nray::WorkerDict.update() (pid=103, ip=192.0.2.3, actor_id=ab)"


def process(rank: int, first: int, last: int, *, host: str | None = None) -> Process:
    start = 1_780_000_000_000
    return Process(host=host, pid=103, rank=rank, first=start + 1_000 * first, last=start + 1_000 * last)


@pytest.mark.parametrize(
    ("known", "host", "rank"),
    [
        ([], None, None),
        ([process(3, 0, 10)], None, 3),  # also long after its last record: it may have died since
        ([process(3, 0, 10, host="a"), process(3, 20, 30)], "a", 3),
        ([process(3, 0, 10, host="a")], "b", None),
        ([process(3, 0, 99, host="a"), process(7, 0, 99, host="b")], "b", 7),
        ([process(3, 0, 99, host="a"), process(7, 0, 99, host="b")], None, None),  # two ranks of the same time
        ([process(3, 0, 10), process(7, 40, 60)], None, 7),  # the id came again after a restart
        ([process(3, 0, 10), process(7, 60, 90)], None, None),  # between the two
    ],
)
def test_a_process_tells_the_rank_only_where_it_is_sure(known, host, rank):
    assert processes.rank_of(line("r", 50, "hello", pid=103, host=host), known) == rank


def test_an_exception_is_its_origins_and_not_the_callers():
    called = line("r", 1, "boom", pid=9, **{"error.type": "ValueError", "error.stack_trace": REMOTE})
    assert processes.origin(called) == 103
    assert processes.origin(line("r", 1, "hello", pid=9)) == 9
    # the caller's host says nothing about the origin's
    assert processes.rank_of(called | {"host.name": "driver"}, [process(3, 0, 10, host="a")]) == 3


@pytest.fixture
def ranked(write) -> str:
    """Two ranks with metrics, lines of theirs that don't say so, a driver that prints what rank 1 raised."""
    boom = {"error.type": "ValueError", "error.message": "boom", "error.stack_trace": REMOTE}
    write(
        [
            *(
                record("ranked", step, step=step, rank=rank, stage="actor", pid=102 + rank, metrics={"x": 1.0})
                for step in range(1, 4)
                for rank in range(2)
            ),
            line("ranked", 2, "it says so", step=2, rank=1, pid=103),
            line("ranked", 2, "of rank 0", step=2, pid=102),
            line("ranked", 2, "of rank 1", step=2, pid=103),
            line("ranked", 2, "of nobody", step=2, pid=104),
            line("ranked", 2, "without a process", step=2),
            line("ranked", 2, "boom", step=2, pid=9, level="error", **boom),
        ]
    )
    return "ranked"


def test_the_store_knows_the_processes_of_ranks(store, ranked):
    with store.open(ranked) as run:
        both = run.processes(pids={102, 103, 104})
        assert {(found.pid, found.rank, found.host) for found in both} == {(102, 0, None), (103, 1, None)}
        assert run.processes(rank=1) == [found for found in both if found.rank == 1]
        assert [found.last - found.first for found in both] == [2_000, 2_000]
        assert run.processes(pids={104}) == []


def test_lines_of_a_rank_are_those_of_its_process_too(store, ranked):
    with store.open(ranked) as run:
        everything = search.search(run, search.wanted(run), {})
        of_one = search.search(run, search.wanted(run, rank=1), {})
    ranks = {lines.text(document): document.get("rank") for document in everything}
    assert ranks == {
        "it says so": 1,
        "of rank 0": 0,
        "of rank 1": 1,
        "of nobody": None,
        "without a process": None,
        "ValueError: boom": 1,
    }
    assert of_one == [document for document in everything if document.get("rank") == 1]
