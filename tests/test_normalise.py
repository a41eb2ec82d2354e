"""Properties of the normaliser: ids, times, text and numbers against independent implementations."""

import base64
import json
import math
import re
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verl_ingest import assets
from verl_ingest.catalog import fields
from verl_ingest.errors import SettingsError
from verl_ingest.normalise import lua_settings
from verl_ingest.normalise.lua import Fallback, Normaliser
from verl_ingest.settings import Settings

NO_TIME = Fallback(1_772_380_800_123_456_789, "read")
NORMALISER = Normaliser(Settings(timezone="Europe/Berlin"))


def documents(
    block: bytes, *, relative: str = "verl_actor_rank3.jsonl", run: str = "r1", offset: int = 0
) -> list[dict[str, Any]]:
    """Return the documents of lines that end in newlines, in order, read by a fresh file handle."""
    documents.files += 1  # type: ignore[attr-defined]
    path = Path(f"/fresh/{documents.files}")  # type: ignore[attr-defined]
    file = NORMALISER.open(path, run_id=run, relative=relative)
    result = NORMALISER.block(file, block, offset=offset, fallback=NO_TIME)
    body = result.dated + b"".join(undated.action() for undated in result.undated)
    lines = [orjson.loads(line) for line in body.split(b"\n")[:-1]]
    pairs = zip(lines[::2], lines[1::2], strict=True)
    found = [{**document, "event_id": action["index"]["_id"]} for action, document in pairs]
    assert len(found) + sum(result.dropped.values()) == result.lines == block.count(b"\n")
    return sorted(found, key=lambda document: base64.urlsafe_b64decode(document["event_id"])[6:11])


documents.files = 0  # type: ignore[attr-defined]


def one(line: bytes, **where: Any) -> dict[str, Any]:
    (document,) = documents(line + b"\n", **where)
    return document


def expected_id(run: str, path: str, offset: int, line: bytes) -> str:
    """Return an event_id as the design publishes it, from Python's own hash functions."""
    digest = 0xCBF29CE484222325
    for byte in f"{run}\0{path}".encode():
        digest = (digest ^ byte) * 0x100000001B3 % 2**64
    file_key = (digest >> 48) ^ (digest & 0xFFFFFFFFFFFF)
    key = file_key.to_bytes(6, "big") + offset.to_bytes(5, "big") + zlib.crc32(line[:32768]).to_bytes(4, "big")
    return base64.urlsafe_b64encode(key).decode()


@given(
    line=st.binary(min_size=1, max_size=300).filter(lambda line: b"\n" not in line and line[-1:] != b"\r"),
    offset=st.integers(0, 2**40 - 1),
    run=st.text(min_size=1, max_size=40).filter(lambda run: "\0" not in run and run.isprintable()),
)
@example(line=b"x" * 40_000, offset=2**40 - 1, run="r'17 #a!b/中")
def test_ids_are_file_offset_and_line(line: bytes, offset: int, run: str) -> None:
    found = documents(line + b"\n", offset=offset, run=run)
    assert [document["event_id"] for document in found] in (
        [],  # blank: dropped
        [expected_id(run, "verl_actor_rank3.jsonl", offset, line)],
    )


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.1", "a.jsonl-20260301", "a.jsonl.gz", "a.jsonl.2.gz"])
def test_rotation_keeps_the_ids(name: str) -> None:
    assert one(b'{"a":1}', relative=name)["event_id"] == expected_id("r1", "a.jsonl", 0, b'{"a":1}')


def test_rays_session_folder_has_two_names_and_its_files_one_id() -> None:
    ids = set()
    for session in ("session_latest", "session_2026-03-01_16"):
        file = NORMALISER.open(
            Path(f"/tmp/ray/{session}/logs/a.jsonl"), run_id="r1", relative=f"{session}/logs/a.jsonl"
        )
        ids |= {u.event_id for u in NORMALISER.block(file, b'{"a":1}\n', offset=0, fallback=NO_TIME).undated}
    assert ids == {expected_id("r1", "a.jsonl", 0, b'{"a":1}')}


def scoped(path: str, relative: str, **settings: Any) -> str:
    normaliser = Normaliser(Settings(**settings))
    file = normaliser.open(Path(path), run_id="r1", relative=relative)
    (undated,) = normaliser.block(file, b'{"a":1}\n', offset=0, fallback=NO_TIME).undated
    return undated.event_id


def test_the_node_goes_into_the_ids_of_its_own_files_only() -> None:
    console, rank = "/data/runs/r1/logs/console.log", "/data/runs/r1/logs/verl_actor_rank0.jsonl.1"
    shared = {path: scoped(path, path[14:]) for path in (console, rank)}
    for node in ("node-1", "node-2"):
        of_node = {path: scoped(path, path[14:], node=node, node_scope=("rank",)) for path in (console, rank)}
        assert of_node[console] == shared[console]
        assert of_node[rank] != shared[rank]
        assert of_node[rank] == expected_id("r1", f"logs/verl_actor_rank0.jsonl\0{node}", 0, b'{"a":1}')
        assert scoped("/elsewhere/x.log", "x.log", node=node, node_scope=("all",)) != scoped(
            "/elsewhere/x.log", "x.log"
        )


def test_files_of_a_node_without_its_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="give --node NAME"):
        Normaliser(Settings(node_scope=("rank",)))


def test_a_line_end_of_windows_is_no_part_of_the_line() -> None:
    assert one(b'{"a":1}\r')["event_id"] == one(b'{"a":1}')["event_id"]


@given(st.lists(st.binary(max_size=80).map(lambda line: line.replace(b"\n", b"")), max_size=8))
@example([b'{"a":', b'{"a":1}}', b"[" * 200, b'{"a":' * 100, b'"', b"{", b'{"\\ud800":1}', b'{"a":1e999}', b"nan"])
@example([b'{"extra":{"":{"":1}}}', b'{"metrics":{"a":1}}', b'{"_id":1,"event_id":"x","flags":["nan"],"kind":7}'])
def test_any_bytes_become_documents_of_the_catalogue(lines: list[bytes]) -> None:
    for document in documents(b"".join(line + b"\n" for line in lines)):
        assert fields.problems(document) == []
        assert "normalizer_error" not in document.get("flags", [])


keys = st.text(min_size=1, max_size=12) | st.sampled_from(
    [
        "step",
        "rank",
        "stage",
        "value",
        "metric_name",
        "timestamp_ns",
        "event",
        "message",
        "pid",
        "hostname",
        "n",
        "data",
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, values, max_size=8), st.booleans())
def test_any_object_becomes_a_document_of_the_catalogue(line: dict[str, Any], ascii_only: bool) -> None:
    document = one(json.dumps(line, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    assert fields.problems(document) == []
    assert "normalizer_error" not in document.get("flags", [])
    assert document["kind"] != "unparsed"


# Keys that are fields of their own, whatever they hold.
FIELD_KEYS = {
    *("step", "global_step", "rank", "stage", "hostname", "pid", "attempt", "gpu.index", "gpu.uuid", "run_id"),
    *("n", "count", "metric_name", "value", "event"),
    *("timestamp_ns", "timestamp", "ts", "time", "@timestamp"),
}
names = st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=["C", "Z"])).filter(
    lambda name: name not in FIELD_KEYS
)


@example({"level": 3.0, "logger": 1e300, "message": 2.5, "msg": 4, "data": 5, "extra": 6})
@example({"a": 1.7976931348623155e308, "b": -1.797693134862315e308, "c": 5e-324, "d": -0.0})
@given(st.dictionaries(names, st.floats() | st.integers(-(2**70), 2**70), min_size=1, max_size=40))
def test_every_number_is_a_metric_under_its_own_name(line: dict[str, float]) -> None:
    document = one(json.dumps(line).encode())
    printed = {name: float(f"{float(value):.16g}") for name, value in line.items()}  # as the agent prints it
    finite = {name: value for name, value in printed.items() if math.isfinite(value)}
    assert document.get("metrics", {}) == finite
    assert sorted(document.get("nonfinite", [])) == sorted(set(line) - set(finite))


def test_lines_of_one_layout_read_as_they_do_alone() -> None:
    lines = [
        b'{"step": 1, "rank": 0, "loss": 0.5, "stage": "actor", "note": "a", "timestamp_ns": 1772380809350000038}',
        b'{"step": 2, "rank": 0, "loss": -1e-7, "stage": "actor", "note": "", "timestamp_ns": 1772380809350000039}',
        b'{"step": 3, "rank": 0, "loss": 1-2, "stage": "actor", "note": "b", "timestamp_ns": 1772380809350000039}',
        b'{"step": 4, "rank": 0, "loss": NaN, "stage": "actor", "note": "c", "timestamp_ns": 1772380809350000040}',
        b'{"step": 5, "rank": 0, "loss": 3, "stage": "actor", "note": "q\\"d", "timestamp_ns": 1772380809350000041}',
        b'{"step": 6, "rank": 0, "loss": 3, "loss": 4, "stage": "actor", "timestamp_ns": 1772380809350000041}',
        b'{"step": 7, "rank": 0, "loss": 3, "stage": "actor", "note": "\xc3\xa9", "timestamp_ns": 1772380809350000042}',
        b'{"step": 8, "rank": 0, "loss": 3, "stage": "actor", "note": "z", "timestamp_ns": 1772380809350000043} ',
    ]
    together = documents(b"".join(line + b"\n" for line in lines))
    offset = 0
    for line, document in zip(lines, together, strict=True):
        assert one(line, offset=offset) == document
        offset += len(line) + 1


@given(st.binary(max_size=60).map(lambda line: b"x" + re.sub(rb"[\x00-\x1f\x7f]", b"", line) + b"y"))
def test_broken_utf8_is_replaced_as_python_does(line: bytes) -> None:
    document = one(line)
    assert document["message"] == line.decode("utf-8", "replace")
    assert ("bad_utf8" in document["flags"]) == ("\ufffd" in document["message"] and b"\xef\xbf\xbd" not in line)


moments = st.datetimes(datetime(1970, 1, 2), datetime(2261, 12, 30))
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(moments, zones)
def test_iso_times_with_a_zone(moment: datetime, zone: timezone) -> None:
    line = json.dumps({"a": 1, "time": moment.replace(tzinfo=zone).isoformat()}).encode()
    utc = moment.replace(tzinfo=zone).astimezone(timezone.utc)
    if utc.year < 1970 or utc.year > 2261:
        return
    assert one(line)["@timestamp"] == utc.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


@given(st.integers(10**9, 9_214_646_399_999_999_999))
def test_nanoseconds_are_kept_in_full(nanoseconds: int) -> None:
    document = one(b'{"a":1,"timestamp_ns":%d}' % nanoseconds)
    moment = datetime.fromtimestamp(nanoseconds // 10**9, timezone.utc)
    assert document["@timestamp"] == f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"
    assert document["time_source"] == "record"


@given(st.datetimes(datetime(2015, 1, 2), datetime(2049, 12, 30)), st.sampled_from(["Europe/Berlin", "Asia/Shanghai"]))
def test_times_without_a_zone_are_of_the_configured_zone(moment: datetime, zone: str) -> None:
    aware = moment.replace(microsecond=0, tzinfo=ZoneInfo(zone))
    wall = int(aware.replace(tzinfo=timezone.utc).timestamp())
    offset = next(o for start, o in reversed(lua_settings.utc_offsets(zone)) if start <= wall or start == 0)
    # An hour that the clock runs through twice or never has two readings.
    assert offset in {int(aware.replace(fold=fold).utcoffset().total_seconds()) for fold in (0, 1)}


def test_the_zone_setting_reaches_the_normaliser() -> None:
    assert one(b'{"a":1,"time":"2026-07-01 12:00:00"}')["@timestamp"] == "2026-07-01T10:00:00.000000000Z"
    assert one(b'{"a":1,"time":"2026-01-01 12:00:00"}')["@timestamp"] == "2026-01-01T11:00:00.000000000Z"


def test_a_long_line_is_cut_and_flagged() -> None:
    document = one(b'{"step":1,"text":"' + b"x" * lua_settings.LINE_BYTES + b'"}')
    assert document["kind"] == "unparsed"
    assert {"truncated:line", "truncated:message", "unparsed"} == set(document["flags"])
    assert len(document["message"]) == 262_144


def test_a_run_with_a_very_long_name_stays_unique() -> None:
    first, second = (one(b'{"step":1,"a":1}', run="r" * 300 + end) for end in "ab")
    assert first["run_id"] != second["run_id"]
    assert len(first["run_id"].encode()) <= 256
    assert first["flags"] == ["run_id_cut"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/runs/ppo-1/logs/verl_actor_rank0.jsonl", ("ppo-1", "logs/verl_actor_rank0.jsonl")),
        ("/data/runs/r'17 #a!b/logs/x.jsonl", ("r'17 #a!b", "logs/x.jsonl")),
        ("/data/runs/中/rollout/3.jsonl", ("中", "rollout/3.jsonl")),
        ("/data/other/ppo-1/logs/x.jsonl", None),
    ],
)
def test_the_run_is_the_folder_that_the_placeholder_matches(path: str, found: tuple[str, str] | None) -> None:
    assert NORMALISER.locate(Path(path)) == found


@pytest.mark.parametrize(
    ("name", "stage", "rank"),
    [
        ("verl_actor_rank12.jsonl", "actor", 12),
        ("rollout_rank1.jsonl", "rollout", 1),
        ("rank0.jsonl", None, 0),
        ("verl_rank7.jsonl", None, 7),
        ("logs/verl_critic_rank3.jsonl.1", "critic", 3),
        ("metrics.jsonl", None, None),
    ],
)
def test_stage_and_rank_of_a_file_name(name: str, stage: str | None, rank: int | None) -> None:
    document = one(b'{"step":1,"a":1}', relative=name)
    assert (document.get("stage"), document.get("rank")) == (stage, rank)
    document = one(b'{"step":1,"a":1,"stage":"critic","rank":5}', relative=name)
    assert (document["stage"], document["rank"]) == ("critic", 5)


def test_texts_of_a_big_dump_are_kept_for_the_lowest_the_highest_and_a_spread() -> None:
    scores = [(index * 7919) % 4001 / 4000 for index in range(4001)]
    lines = b"".join(b'{"input":"i%d","output":"o","score":%.6f,"step":1}\n' % pair for pair in enumerate(scores))
    found = documents(lines, relative="rollout/1.jsonl")
    kept = [document["sample.score"] for document in found if "sample.input" in document]
    assert set(sorted(scores)[:16]) <= set(kept)
    assert set(sorted(scores)[-8:]) <= set(kept)
    assert len(kept) < 250
    assert sum("text_not_kept" in document.get("flags", []) for document in found) == len(scores) - len(kept)


def test_the_loader_writes_every_field_of_the_catalogue() -> None:
    """A field that the lists of normalize_batch.lua lack would be lost in silence."""
    text = assets.path("deploy/fluent-bit/normalize_batch.lua").read_text()
    written = set(re.findall(r'"([a-z_.]+)",', text)) | {"@timestamp", "event_id"}
    of_lines = [field for field in fields.load().fields if field.type != "alias" and field.index != "steps"]
    assert {field.name for field in of_lines if not field.name.startswith("anomaly.")} - written == set()


def forwarded(record: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a record that a process sent, as Fluent Bit calls for it."""
    runtime = NORMALISER._lua

    def to_lua(value: Any) -> Any:
        if isinstance(value, dict):
            return runtime.table_from({key.encode(): to_lua(item) for key, item in value.items()})
        if isinstance(value, list):
            return runtime.table_from([to_lua(item) for item in value])
        return value.encode() if isinstance(value, str) else value

    def to_python(value: Any) -> Any:
        if not hasattr(value, "items"):
            return value.decode() if isinstance(value, bytes) else value
        items = {key.decode() if isinstance(key, bytes) else key: to_python(item) for key, item in value.items()}
        return [items[key] for key in sorted(items)] if 1 in items else items

    moment = to_lua({"sec": 1_772_380_800, "nsec": 5})
    code, time, document = runtime.globals().normalize(b"verl.records", moment, to_lua(record))
    assert (code, time[b"sec"]) == (1, 1_772_380_800)
    return to_python(document)


sendable = st.recursive(
    st.booleans() | st.floats() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(keys, sendable, max_size=6))
@example({"log": "text", "path": "/a", "loss": 1.0})
@example({"log": {"a": 1}, "path": "/a", "offset": 3})
def test_any_record_that_is_sent_becomes_a_document_of_the_catalogue(record: dict[str, Any]) -> None:
    record.pop("timestamp_ns", None)
    document = forwarded(record)
    assert fields.problems(document) == []
    assert "normalizer_error" not in document.get("flags", [])
    assert forwarded(record) == document
