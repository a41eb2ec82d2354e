"""Console lines: step lines against their JSON twins, drops by a line's own shape, state that only ever says less."""

import base64
import gzip
import json
import math
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden
from verl_ingest.catalog import fields
from verl_ingest.load import duration, files
from verl_ingest.normalise.lua import Block, Fallback, Normaliser
from verl_ingest.settings import DropRule, Settings

READ_AT = Fallback(1_772_380_800_000_000_000, "read")  # 2026-03-01T16:00:00Z
SETTINGS = Settings(timezone="Asia/Shanghai")
NORMALISER = Normaliser(SETTINGS)
TASK = b"\x1b[36m(TaskRunnerV1 pid=8668)\x1b[0m "

CONSOLES = [log for log in golden.logs() if not log.name.endswith(".jsonl")]
FILES = iter(range(1_000_000))


def block(
    lines: bytes,
    *,
    name: str = "console.log",
    offset: int = 0,
    fallback: Fallback = READ_AT,
    normaliser: Normaliser = NORMALISER,
) -> Block:
    """Normalise lines that end in newlines as a file of its own."""
    file = normaliser.open(Path(f"/console/{next(FILES)}"), run_id="r1", relative=name)
    return normaliser.block(file, lines, offset=offset, fallback=fallback)


def documents(result: Block) -> list[dict[str, Any]]:
    """Return a block's documents in the order of their lines, each with its id."""
    body = result.dated + b"".join(undated.action() for undated in result.undated)
    pairs = body.split(b"\n")
    found = [
        {"event_id": orjson.loads(action)["index"]["_id"], **orjson.loads(document)}
        for action, document in zip(pairs[:-1:2], pairs[1::2], strict=True)
    ]
    return sorted(found, key=lambda document: _offset(document["event_id"]))


def _offset(event_id: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(event_id)[6:11], "big")


def read(*lines: bytes, **options: Any) -> list[dict[str, Any]]:
    result = block(b"".join(line + b"\n" for line in lines), **options)
    found = documents(result)
    assert len(found) + sum(result.dropped.values()) == len(lines)
    for document in found:
        assert fields.problems(document) == []
    return found


def offsets(text: bytes) -> Iterable[tuple[int, bytes]]:
    """Yield the byte offset of each line, and the line with its newline."""
    at = 0
    for line in text.split(b"\n")[:-1]:
        yield at, line + b"\n"
        at += len(line) + 1


# Step lines.

NAME = st.text("abz/@_-. :42", min_size=1, max_size=12).filter(
    lambda name: name.strip() == name and " - " not in f" {name} " and "::" not in f":{name}:"
)
NUMBER = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**53), 2**53),
    st.sampled_from([0.0, 1.0, 1e-06, 0.060907496605068445, 1.7976931348623157e308]),
)


def printed(number: float, wrapped: bool) -> str:
    """Spell a number as verl's console does: its repr, since numpy 2 with the type around it."""
    return f"np.{'int64' if isinstance(number, int) else 'float64'}({number!r})" if wrapped else repr(number)


@given(
    steps=st.lists(
        st.dictionaries(NAME, st.tuples(NUMBER, st.booleans()), min_size=1, max_size=6), min_size=1, max_size=3
    )
)
def test_a_step_line_says_what_its_file_logger_twin_says(steps: list[dict[str, tuple[float, bool]]]) -> None:
    console = [
        TASK + f"step:{number} - ".encode() + " - ".join(f"{k}:{printed(*v)}" for k, v in step.items()).encode()
        for number, step in enumerate(steps)
    ]
    logger = [
        json.dumps({"step": number, "data": {name: value for name, (value, _) in step.items()}}).encode()
        for number, step in enumerate(steps)
    ]
    for line, twin in zip(read(*console), read(*logger, name="file_logger.jsonl"), strict=True):
        kept = ("kind", "stage", "step", "metrics", "nonfinite", "flags")
        assert {name: line.get(name) for name in kept} == {name: twin.get(name) for name in kept}


def test_a_step_line_of_a_known_layout_reads_as_it_does_alone() -> None:
    lines = [
        TASK + b"step:%d - a/b:%s - c:np.float64(%s) - d@4:%s" % (number, a, c, d)
        for number, (a, c, d) in enumerate(
            [(b"1.5", b"2", b"3"), (b"-1e-06", b"0.25", b"7"), (b"nan", b"1", b"2"), (b"4", b"inf", b"5")]
        )
    ]
    alone = [read(line)[0]["metrics"] for line in lines]
    assert [document["metrics"] for document in read(*lines)] == alone
    assert alone[1] == {"a/b": -1e-06, "c": 0.25, "d@4": 7}


@pytest.mark.parametrize(
    "text",
    [
        b"Dumped generations to /data/runs/grpo-A/rollout/12.jsonl",
        b"INFO:2026-11-29 12:37:35,983:Saving checkpoint to /x/global_step_12",
        b"[2026-11-29 12:19:22,789][verl.trainer.main_ppo][WARNING] - Legacy trainer - yes",
        "已保存".encode(),
    ],
)
@pytest.mark.parametrize("number", [b"0", b"2.5", b"1e-06", b"np.int64(0)", b"nan", b"-inf"])
def test_text_glued_behind_the_last_number_takes_nothing_of_it(text: bytes, number: bytes) -> None:
    (plain,) = read(b"step:12 - a:1.0 - b:" + number)
    (glued,) = read(b"step:12 - a:1.0 - b:" + number + text)
    assert glued["message"] == text.decode()
    assert glued["metrics"] == plain["metrics"]
    assert glued.get("nonfinite") == plain.get("nonfinite")


# Drops.


@pytest.mark.parametrize("log", CONSOLES, ids=str)
def test_a_line_is_dropped_for_what_it_says_itself(log: Path) -> None:
    text = (golden.FOLDER / log).read_bytes()
    together = block(text)
    alone: dict[str, int] = {}
    for offset, line in offsets(text):
        for rule, count in block(line, offset=offset).dropped.items():
            alone[rule] = alone.get(rule, 0) + count
    assert alone == together.dropped


def noisy(*rules: dict[str, Any]) -> Normaliser:
    return Normaliser(Settings(timezone="Asia/Shanghai", drop=tuple(DropRule(**rule) for rule in rules)))


NOISE = [
    b"[DEBUG] logits shape=torch.Size([64, 512, 151936]) dtype=bfloat16",
    b"[DEBUG] Rollout for prompt_id=1001 took 1.24s | tokens=512 | avg_latency=2.4ms/token",
    b"[2026-03-01 16:00:03,200] [INFO] [workers/rollout/vllm_rollout.py:287] [Rank 0] weights are there",
    b"[INFO] [workers/rollout/vllm_rollout.py:287] [Rank 0] Rollout completed in 3.2s | Tokens generated: 12800",
    b"[2026-03-01 16:00:03,200][verl.trainer.main_ppo][WARNING] - a shape=torch.Size too",
    b"step:1 - a:1",
    b"hello",
]


@pytest.mark.parametrize(
    ("rule", "dropped"),
    [
        ({"level": "DEBUG"}, [0, 1]),
        ({"level": "info"}, [2]),  # the rollout line is a metric
        ({"contains": "shape=torch.Size"}, [0, 4]),
        ({"level": "debug", "contains": "shape=torch.Size"}, [0]),
        ({"logger": "workers/rollout"}, [2]),
        ({"logger": "verl.trainer"}, [4]),
        ({"logger": "verl.train"}, []),
        ({"contains": "a:1"}, []),
        ({"contains": "hel.o"}, []),
    ],
)
def test_a_noise_rule_drops_log_lines_that_fit_it(rule: dict[str, Any], dropped: list[int]) -> None:
    normaliser = noisy({"name": "noise", **rule})
    for number, line in enumerate(NOISE):
        assert block(line + b"\n", normaliser=normaliser).dropped == ({"noise": 1} if number in dropped else {})


def test_a_noise_rule_holds_for_messages_of_rank_logs_too() -> None:
    lines = b'{"step":1,"level":"DEBUG","message":"shape"}\n{"step":1,"level":"DEBUG","loss":0.5}\n'
    result = block(lines, name="rank0.jsonl", normaliser=noisy({"name": "debug", "level": "debug"}))
    assert result.dropped == {"debug": 1}


def test_a_sampled_rule_keeps_the_same_lines_every_time() -> None:
    lines = b"".join(b"[DEBUG] logits shape=%d\n" % number for number in range(4_000))
    normaliser = noisy({"name": "shapes", "level": "debug", "keep_one_in": 10})
    first, second = (block(lines, normaliser=normaliser) for _ in range(2))
    assert first.dropped["shapes"] + first.documents == 4_000
    assert 320 < first.documents < 480
    assert [document["event_id"] for document in documents(first)] == [d["event_id"] for d in documents(second)]


# State.


# In the middle of a printed sample nothing tells its text from log lines, so that file is left out.
@pytest.mark.parametrize("log", [log for log in CONSOLES if log.parts[0] != "console-samples"], ids=str)
def test_a_restarted_agent_says_nothing_that_the_whole_file_does_not_say(log: Path) -> None:
    text = (golden.FOLDER / log).read_bytes()
    whole = {document["event_id"]: document for document in documents(block(text))}
    starts = [offset for offset, _ in offsets(text)]
    for start in starts[:: max(len(starts) // 8, 1)]:
        rest = documents(block(text[start:], offset=start))
        assert [document["event_id"] for document in rest] == list(whole)[len(whole) - len(rest) :]
        assert len(rest) == sum(_offset(event_id) >= start for event_id in whole)
        for document in rest:
            if "step" in document:
                assert document["step"] == whole[document["event_id"]]["step"]
            if "error.stack_trace" in document:
                assert document["error.stack_trace"] in whole[document["event_id"]]["error.stack_trace"]


def test_a_file_that_begins_anew_forgets_where_its_steps_stood() -> None:
    file = NORMALISER.open(Path("/console/rewritten"), run_id="r1", relative="console.log")
    first = NORMALISER.block(
        file, b"step:7 - a:1\nhello\nTraceback (most recent call last):\n", offset=0, fallback=READ_AT
    )
    again = NORMALISER.block(file, b'hello again\n  File "a.py", line 1, in f\n', offset=0, fallback=READ_AT)
    assert [document.get("step") for document in documents(first)] == [7, 8, 8]
    assert [(d.get("step"), d.get("error.id")) for d in documents(again)] == [(None, None), (None, None)]


def test_hundreds_of_equal_errors_at_once_come_out_as_one_stack_each_and_fold() -> None:
    stack = [
        b"Traceback (most recent call last):",
        b'  File "/opt/train/worker.py", line 45, in update_critic',
        b"    loss.backward()",
        b"RuntimeError: NCCL error: unhandled system error, rank %d did not answer",
    ]
    processes = [b"(WorkerDict pid=%d, ip=10.0.%d.%d) " % (4000 + n, n // 8, n % 8) for n in range(511)]
    lines = [head + (part % n if b"%d" in part else part) for part in stack for n, head in enumerate(processes)]
    closing = [document for document in read(*lines) if "error.type" in document]
    assert len(closing) == 511
    assert len({document["error.fingerprint"] for document in closing}) == 1
    assert len({document["error.id"] for document in closing}) == 511
    for number, document in enumerate(closing):
        assert document["error.stack_trace"].count("\n") == 3
        assert document["error.stack_trace"].endswith(f"rank {number} did not answer")


def test_a_long_stack_is_cut_in_the_middle() -> None:
    calls = [b'  File "a.py", line %d, in f%s' % (number, b"x" * 400) for number in range(400)]
    document = read(b"Traceback (most recent call last):", *calls, b"ValueError: deep")[-1]
    assert document["flags"] == ["truncated:error.stack_trace"]
    assert len(document["error.stack_trace"]) < 70_000
    assert "line 0," in document["error.stack_trace"]
    assert document["error.stack_trace"].endswith("\nValueError: deep")


def test_a_stack_that_never_ends_is_given_up() -> None:
    found = read(b"Traceback (most recent call last):", *[b"  continues"] * 2_000, b"ValueError: late")
    assert [number for number, document in enumerate(found) if "error.stack_trace" in document] == [999]
    assert found[999]["flags"] == ["stack_endless"]
    assert found[999]["log.level"] == "error"
    assert sum("error.id" in document for document in found) == 1_000
    assert (found[-1]["error.type"], found[-1]["message"]) == ("ValueError", "ValueError: late")


def test_a_stack_without_an_end_loses_nothing() -> None:
    found = read(b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', b"    g()")
    assert [document["message"] for document in found][-1] == "    g()"
    assert {document["error.id"] for document in found} == {found[0]["event_id"]}


def test_torch_and_ray_run_out_of_different_memory() -> None:
    torch, ray = (
        read(b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', line)[-1]
        for line in (
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.",
            b"ray.exceptions.OutOfMemoryError: 7 worker(s) were killed due to the node running low on memory.",
        )
    )
    assert (torch["error.type"], ray["error.type"]) == ("torch.OutOfMemoryError", "ray.exceptions.OutOfMemoryError")
    assert torch["error.fingerprint"] != ray["error.fingerprint"]


# Times.


@pytest.mark.parametrize(
    ("read_at", "printed_time", "expected"),
    [
        ("2026-11-29T12:00:00", b"11-29 11:59:58", "2026-11-29T03:59:58"),
        ("2027-01-01T00:05:00", b"12-31 23:59:58", "2026-12-31T15:59:58"),
        ("2026-12-31T15:00:00", b"01-01 00:00:01", "2026-12-31T16:00:01"),
        ("2028-03-05T00:00:00", b"02-29 08:00:00", "2028-02-29T00:00:00"),
    ],
)
def test_a_time_without_a_year_is_near_the_time_of_reading(read_at: str, printed_time: bytes, expected: str) -> None:
    moment = datetime.fromisoformat(read_at).replace(tzinfo=timezone.utc)
    fallback = Fallback(int(moment.timestamp()) * 1_000_000_000, "read")
    (document,) = read(b"INFO " + printed_time + b" [loggers.py:236] Engine 000: x", fallback=fallback)
    assert document["@timestamp"] == f"{expected}.000000000Z"
    assert (document["time_source"], document["flags"]) == ("line", ["year_assumed"])


def test_a_local_time_falls_on_the_day_it_has_in_utc() -> None:
    result = block(b"INFO:2026-03-02 07:59:59,999:late\nINFO:2026-03-02 08:00:00,000:early\n")
    indices = [orjson.loads(line)["index"]["_index"] for line in result.dated.split(b"\n")[:-1:2]]
    assert indices == ["verl-2026.03.01", "verl-2026.03.02"]


def test_lines_without_a_time_follow_the_clock_of_a_finished_file() -> None:
    began = Fallback(READ_AT.nanoseconds, "estimated")
    lines = [
        b"first",
        b"step:1 - timing_s/step:10.5 - timing_s/testing:2.0",
        b"INFO:2026-03-02 00:01:00,000:dated",
        b"INFO:2026-03-02 00:00:58,000:printed late",
        b"behind",
        b"step:2 - timing_s/step:np.float64(20.0)",
    ]
    times = [document["@timestamp"][11:19] for document in read(*lines, fallback=began)]
    assert times == ["16:00:00", "16:00:12", "16:01:00", "16:00:58", "16:01:00", "16:01:20"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b'{"step":1,"data":{"timing_s/step":1.5,"timing_s/testing":0.25}}\n', 1.75),
        (b"step:1 - timing_s/step:np.float64(2.5) - x:1\nstep:2 - timing_s/step:3 - timing_s/step_x:9\n", 5.5),
        (b"hello\n", 0.0),
        (b"", 0.0),
    ],
)
def test_the_steps_of_a_file_say_how_long_it_took(text: bytes, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(text)
    assert math.isclose(duration.of_steps(tmp_path / "log"), seconds)
    assert duration.of_steps(tmp_path / "none") == 0.0


# Hostile lines.

FRAGMENTS = [
    *(
        b"\x1b[36m(A pid=1)\x1b[0m |(A pid=1, ip=10.0.0.2) |(raylet) |[Rank 3] |[INFO] |[a/b.py:1] |[DEBUG] |INFO:"
    ).split(b"|"),
    *(
        b"2026-03-01 16:00:00,123|11-29 12:00:00 |step:5 - a:1 - |PPO Step 5 \x7c KL: 0.1|Loss breakdown: a=1|: |="
    ).split(b"|"),
    *(b'Traceback (most recent call last):|  File "a.py", line 1, in f|ValueError: x|[prompt] |[score] 1').split(b"|"),
    *(b"\rBar: 10%\x7c#\x7c 1/2 [00:01<00:01]|{'a': {'b': 1,|          'k': 1,|}}|{\"step\": 1}|:job_id:1").split(b"|"),
    *(
        b"Dumped generations to /x/3.jsonl|global_step_7| [repeated 3x across cluster]|\xff\x80|\x00|\t|  |nan|-inf"
    ).split(b"|"),
]
LINE = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=6)), min_size=1, max_size=6).map(
    lambda parts: b"".join(parts).replace(b"\n", b" ")
)


@given(lines=st.lists(LINE, min_size=1, max_size=8))
def test_any_line_is_one_document_of_the_catalogue_or_dropped(lines: list[bytes]) -> None:
    for document in read(*lines):
        assert not any(flag == "normalizer_error" for flag in document.get("flags", ()))


# Files.


def test_consoles_are_found_and_binary_files_of_their_names_are_not(tmp_path: Path) -> None:
    names = ["console.log", "slurm-7.out", "worker-ab-01-7.err", "train.log.1", "train.log-20260301", "rank0.jsonl"]
    for name in names:
        (tmp_path / name).write_bytes(b"hello\n")
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(b"hello\n"))
    (tmp_path / "a.out").write_bytes(b"\x7fELF\0\0\1")
    (tmp_path / "core.log.gz").write_bytes(gzip.compress(b"\x7fELF\0\0\1"))
    (tmp_path / "model.pt").write_bytes(b"\0")
    found = files.discover([tmp_path], NORMALISER)
    assert {log.path.name for log in found.logs} == {*names, "old.log.gz"}
    assert {path.name for path in found.ignored} == {"a.out", "core.log.gz", "model.pt"}
