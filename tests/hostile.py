"""Log lines at their worst, for hypothesis: whatever bytes a crash, a bug or a stranger may leave in a log."""

import json
from typing import Any

from hypothesis import strategies as st

# Every way that training code writes a number that is none; what stands in quotes comes as a text.
NOT_FINITE = {
    "nan": ["NaN", "nan", "NAN", "-nan", "np.float64(nan)", '"nan"', '"NaN"', '"+nan"', '"np.float32(nan)"'],
    "inf": ["Infinity", "inf", "Inf", "1e400", "9" * 400, "np.float64(inf)", '"inf"', '"+Infinity"', '"1e400"'],
    "-inf": ["-Infinity", "-inf", "-INF", "-1e400", "np.float64(-inf)", '"-inf"', '"-Infinity"', '"np.float16(-inf)"'],
}
NAMES = [
    *("loss", "kl_divergence", "timing(s)/gen", "val-core/gsm8k/reward/mean@4", "Clip Fraction", "奖励", 'say "x"'),
    *("a.b", "a..b", ".", "..", ".a", "a.", " a", "a ", "*", "{}", "$", "\\", "_id", "_source", "1", "0x1", "a\tb"),
    *("", " ", "\t\n", "\u3000", " \u2003 ", "\u2028", "\u00a0", "\u200b", "\ufeff", "\x85", "\0", "a\0b", "\x7f"),
    *("\ud83d", "x" * 256, "x" * 257, "长" * 86, "y" * 9_000),
]
FIELDS = [
    *("step", "global_step", "rank", "stage", "run_id", "hostname", "pid", "attempt", "gpu.index", "gpu.uuid"),
    *("n", "count", "num_samples", "metric_name", "value", "event", "message", "msg", "level", "logger"),
    *("timestamp_ns", "timestamp", "ts", "time", "@timestamp", "data", "input", "output", "score", "gts", "uid"),
    *("metrics", "extra", "host", "flags", "kind", "event_id", "_id", "sample.score", "anomaly.rule", "error.type"),
]
NUMBERS = [
    *("0", "-0.0", "0.75", "12.7", "-1", "1e-320", "3.5e38", "1.7976931348623157e308", "01", "1.", "+1", ".5", "0x10"),
    *(str(number) for number in (2**31, 2**53 + 1, 2**63, 2**64, 2**200)),
]
# Days of their own: no other test's indices fill up with these names.
TIMES = [
    *("3456000000000000000", '"2079-07-08T00:00:00Z"', '"2079-07-08 00:00:00,5"', "3456000000.25", "3456000000000"),
    *(
        "-1",
        "0",
        "1",
        "9214646400000000000",
        "9223372036854775808",
        '"2262-01-01T00:00:00Z"',
        '"never"',
        '"1969-12-31T23:59:59Z"',
    ),
    *('"2079-02-30T00:00:00Z"', '"2079-07-08T24:00:00Z"', '"0000-00-00T00:00:00Z"', '"9999-12-31T23:59:59Z"'),
]
CONSOLE = [
    "step:{n} - actor/loss:{v} - a - b:{v} - timing_s/step:{n}",
    "step:1 - loss:1 - timing_s/step:1{n} - timing_s/testing:{v}",
    "\x1b[36m(TaskRunner pid={n})\x1b[0m step:{n} - loss:np.float64({v})",
    "(W pid={n}, ip=1.2.3.4) [2079-07-08 00:00:00,123] [INFO] [actor/x.py:{n}] PPO Step {n} | KL: {v} | e",
    "[rank{n}]: ValueError: {v}",
    "[Rank {n}] [WARNING] [critic/x.py:{n}] Rollout completed in {v}s",
    "Setting global step to {n}",
    "x [repeated {n}x across cluster]",
    "2079-07-08T00:00:00.{n}Z stderr F text {v}",
    "W0708 12:11:10.123456 {n} torch/run.py:{n}] text",
    "node-1:{n}:{n} [{n}] NCCL WARN net.cc:{n} {v}",
    ":actor_name:{v}",
    "Traceback (most recent call last):",
    '  File "{v}", line {n}, in {v}',
    "torch.OutOfMemoryError: {v}",
    "Error executing job with overrides: ['a={v}', '+b={n}']",
    "{{'trainer': {{'nnodes': {n}, 'x': '{v}'}}}}",
    "[prompt] {v}",
    "Engine {n}: Avg generation throughput: {v} tokens/s",
    "*** SIGTERM received at time={n} on cpu 0 ***",
    '{{"step": {n}, "loss": {v}, "timestamp_ns": 3456000000000000000}}',
]

texts = st.text(st.characters(), max_size=12)  # with control characters and halves of surrogate pairs
names = st.sampled_from(NAMES) | st.sampled_from(FIELDS)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**80), 2**80) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names | texts, inner, max_size=3),
    max_leaves=6,
)
deep = st.tuples(st.sampled_from(['{"a":', "[", '[{"":']), st.integers(1, 80)).map(
    lambda pair: (
        pair[0] * pair[1] + "1" + "".join({"{": "}", "[": "]"}.get(mark, "") for mark in reversed(pair[0])) * pair[1]
    )
)
tokens = st.one_of(
    st.sampled_from([token for spellings in NOT_FINITE.values() for token in spellings]),
    st.sampled_from(NUMBERS),
    st.sampled_from(TIMES),
    json_values.map(json.dumps),
    deep,
)


def _object(pairs: list[tuple[str, str]]) -> str:
    """Write an object by hand, so that a key may come twice."""
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {token}" for name, token in pairs) + "}"


objects = st.lists(st.tuples(names, tokens), max_size=8).map(_object)
timed = objects.map(lambda text: text[:-1] + (", " if len(text) > 2 else "") + '"timestamp_ns": 3456000000000000000}')
console = st.builds(
    lambda form, number, value: form.format(n=number, v=value),
    st.sampled_from(CONSOLE),
    st.sampled_from(["1", "7", "12.5", *map(str, (2**31, 2**53 + 1, 2**63, 10**30))]),
    texts | st.sampled_from([*NUMBERS, "nan", "-inf", "x" * 9_000, "长" * 12_000]),
)
whole = st.one_of(objects, timed, console, json_values.map(json.dumps), texts).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
truncated = st.tuples(objects, st.floats(0, 1)).map(
    lambda pair: pair[0].encode("utf-8", "surrogatepass")[: int(len(pair[0]) * pair[1])]
)
lines = st.one_of(whole, whole, truncated, st.binary(max_size=60)).map(lambda line: line.replace(b"\n", b"\r"))

# What a file is called says what its lines are.
FILE_NAMES = [
    *(
        "verl_actor_rank2.jsonl",
        "rank99999999999.jsonl",
        "metrics.jsonl",
        "console.log",
        "rollout/3.jsonl",
        "val/7.jsonl",
    ),
    *("rollout/99999999999999999999.jsonl", "ray/worker-31bf-01000000-99999999999999999999.out"),
]
files = st.dictionaries(st.sampled_from(FILE_NAMES), st.lists(lines, min_size=1, max_size=12), min_size=2, max_size=5)
