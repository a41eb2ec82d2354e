import pytest

from tests.documents import line, record
from verl_ingest.context import lines, search, words
from verl_ingest.errors import InputError, NotFound


def test_equal_lines_fold_wherever_they_stand():
    folds = lines.fold(
        [
            line("r", 1, "saved", rank=2, level="info"),
            line("r", 2, "other", level="info"),
            line("r", 3, "saved", rank=0, level="info", **{"log.repeated": 7}),
            line("r", 4, "saved", level="error"),
        ]
    )
    assert [(fold.entry()["message"], fold.count, fold.entry()["ranks"]) for fold in folds] == [
        ("saved", 8, [0, 2]),
        ("other", 1, []),
        ("saved", 1, []),
    ]
    assert folds[0].entry()["last"] == "2026-05-28T20:26:43.000Z"


def test_errors_with_one_fingerprint_fold_whatever_their_numbers():
    errors = lines.errors(
        [
            record(
                "r", n, kind="log", rank=n, **{"error.type": "E", "error.message": f"pid {n}", "error.fingerprint": "f"}
            )
            for n in (3, 1)
        ],
        {},
    )
    assert [(error["message"], error["count"], error["ranks"]) for error in errors] == [("E: pid 1", 2, [1, 3])]


def test_an_event_says_its_name_and_single_values_in_one_line():
    document = record("r", 1, kind="event", event="grow", metrics={"new": 128.0}, extra={"why": "std", "config": {}})
    assert lines.text(document) == "event grow new=128.0 why=std"
    assert lines.text(document | {"extra": {"why": "a\nb"}}) == "event grow new=128.0 why=a"
    assert len(lines.text(document | {"extra": {"why": "x" * 1_000}})) == 200


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"log.origin.file.name": "a.py", "log.origin.file.line": 7}, "a.py:7"),
        ({"log.origin.file.name": "a.py"}, "a.py"),
        ({"log.logger": "verl.trainer"}, "verl.trainer"),
        ({}, "console.log"),
    ],
)
def test_where_a_line_comes_from(fields, expected):
    assert lines.source(line("r", 1, "x", **fields)) == expected


def test_levels_from_a_level_on():
    assert lines.levels_from("error") == ["error", "critical", "fatal"]
    assert lines.levels_from("Warning")[:2] == ["warn", "warning"]
    assert lines.levels_from("loud") is None


@pytest.mark.parametrize(("text", "steps"), [("128", (128, 128)), ("120..130", (120, 130))])
def test_ranges_of_steps(text, steps):
    assert search.parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "..", "1..", "..2", "9..1", "1-2", "a", "-1", "1..2..3"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(InputError, match="is not a range of steps"):
        search.parse_steps(text)


@pytest.fixture
def messages(store, write):
    write(
        [
            *(record("found", 100 * step, step=step, rank=0, stage="actor", metrics={"x": 1.0}) for step in (1, 2, 3)),
            line("found", 195, "Just before", step=1),
            line("found", 205, "no step here"),
            line("found", 290, "main_ppo.py: CUDA out-of-memory 显存", step=3, level="error", rank=1),
            line(
                "found",
                295,
                "",
                rank=2,
                **{"error.type": "E", "error.message": "m", "error.stack_trace": "File train.py"},
            ),
        ]
    )

    def find(**wanted) -> list[str]:
        with store.open("found") as run:
            return [lines.text(document) for document in search.search(run, search.wanted(run, **wanted), {})]

    return find


@pytest.mark.parametrize("text", ["out-of-mem", "PPO.PY: cuda", "显存", "o"])
def test_a_text_is_found_anywhere_in_a_line_in_any_case(messages, text):
    assert "main_ppo.py: CUDA out-of-memory 显存" in messages(text=text)


@pytest.mark.parametrize("text", ["out of mem", "memory .*", "ppo.pyc", "显卡"])
def test_a_text_is_taken_letter_by_letter(messages, text):
    assert messages(text=text) == []


def test_a_text_is_found_in_a_stack(messages):
    assert messages(text="train.py") == ["E: m"]


def test_the_time_around_steps(messages):
    assert messages(steps=(2, 2)) == []
    assert messages(steps=(2, 2), around=10_000) == ["Just before", "no step here"]
    assert messages(steps=(1, 1), around=1) == ["Just before"]  # the step's own, 95 s after its last record
    assert messages(steps=(2, 3), around=1, level="error") == ["main_ppo.py: CUDA out-of-memory 显存", "E: m"]
    assert messages(around=20_000) == ["main_ppo.py: CUDA out-of-memory 显存", "E: m"]
    assert messages(around=20_000, level="error", rank=2) == ["E: m"]
    with pytest.raises(NotFound, match="has no step 9"):
        messages(steps=(2, 9), around=1)
    with pytest.raises(InputError, match="'loud' is not a level"):
        messages(level="loud")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.02041, "0.0204"), (2563.4, "2,563"), (999.6, "1,000"), (-61.04, "-61"), (0, "0"), (1e-6, "1e-06"),
        (3.2e12, "3.2e+12"), (None, words.DASH),
    ],
)  # fmt: skip
def test_numbers(value, text):
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.31, "0.31 s"), (3.16, "3.2 s"), (57, "57 s"), (300, "5 min"), (3_725, "1 h 2 min"), (90_000, "1 d 1 h")],
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


def test_ranks_and_lists():
    assert words.ranks({3}) == "rank 3"
    assert words.ranks({0, 1, 2, 7}) == "ranks 0\u20132, 7"
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
    assert words.first_line("  one\ntwo") == "one"
    assert words.first_line("x" * 300) == "x" * 199 + "\u2026"


def test_process_ids_are_listed_unless_they_are_many():
    assert [words.pids(numbers) for numbers in ([], [7], [7, 9], [1, 2, 3, 4])] == [
        "",
        "pid 7",
        "pids 7, 9",
        "4 processes",
    ]
