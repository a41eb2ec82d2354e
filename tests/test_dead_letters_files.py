"""Files of dead letters: what they hold is read, whatever is cut off or damaged is named, and nothing crashes."""

import gzip
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deadletters import HEADER, REAL, SECOND, START, decode, encode
from verl_ingest.deadletters import chunk
from verl_ingest.deadletters.chunk import Record

PRINTED = st.floats().map(lambda value: float(f"{value:.16g}"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | PRINTED,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(
    st.builds(Record, st.integers(0, 2**32 * SECOND - 1), st.dictionaries(st.text(max_size=9), JSON, max_size=5)),
    min_size=1,
    max_size=12,
)
MANY = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class TestDecoder:
    def test_a_real_file(self) -> None:
        records, problem = decode(REAL)
        assert problem is None
        assert [record.document["event_id"] for record in records] == [
            "wlG9518RAAAAAAAumNHN",
            "wlG9518RAAAAAGyc-qgS",
            "wlG9518RAAAAAOaS13CV",
            "wlG9518RAAAAAXfGjMtm",
        ]
        assert [record.time_ns - START for record in records[:3]] == [s * SECOND + 123_456_789 for s in (1, 2, 3)]
        assert records[0].document["metrics"] == {"loss": 0.11, "kl": 1e-05, "third": 0.3333333333333333}
        assert records[1].document["flags"] == ["nan:entropy"]
        assert records[2].document["extra"] == {"note": '长 / 😀 "q"'}
        assert records[3].document["message"] == "not json"

    @given(records=RECORDS, more=RECORDS, checked=st.booleans(), padding=st.integers(0, 5_000))
    @MANY
    def test_what_is_written_is_read_also_when_appended(
        self, tmp_path: Path, records: list[Record], more: list[Record], checked: bool, padding: int
    ) -> None:
        file = tmp_path / "a.flb"
        file.write_bytes(encode(records + more, checked=checked, padding=padding))
        found, problem = decode(file)
        assert problem is None
        assert repr(found) == repr(records + more)  # NaN is not equal to itself

    @given(records=RECORDS, checked=st.booleans(), part=st.floats(0, 1, exclude_max=True))
    @MANY
    def test_a_file_cut_short_gives_the_records_before_the_cut(
        self, tmp_path: Path, records: list[Record], checked: bool, part: float
    ) -> None:
        file, whole = tmp_path / "a.flb", encode(records, checked=checked)
        file.write_bytes(whole[: int(len(whole) * part)])
        found, problem = decode(file)
        assert problem
        assert problem.startswith(f"{file}: ")
        assert repr(found) == repr(records[: len(found)])

    @given(records=RECORDS, place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), checked=st.booleans())
    @MANY
    def test_a_changed_byte_is_never_a_crash_and_seen_by_the_checksum(
        self, tmp_path: Path, records: list[Record], place: float, flip: int, checked: bool
    ) -> None:
        file, content = tmp_path / "a.flb", bytearray(encode(records, checked=checked, padding=9))
        position = int(len(content) * place)
        content[position] ^= flip
        file.write_bytes(content)
        found, problem = decode(file)
        if checked and HEADER - 2 <= position < len(content) - 9:
            assert problem
            assert found == []

    @given(content=st.binary(max_size=200))
    @MANY
    def test_any_content_behind_a_sound_header(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "a.flb"
        file.write_bytes(encode([])[:10] + struct.pack(">I8xH", len(content), 0) + content)
        decode(file)

    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"", "this is no file of Fluent Bit's chunks; leave it out."),
            (gzip.compress(REAL.read_bytes()), "this is no file of Fluent Bit's chunks; leave it out."),
            (
                REAL.read_bytes()[:500],
                "damaged at byte 494, only the 2 records before that are taken; "
                "load the logs of its runs again to bring what is lost.",
            ),
            (
                encode([Record(START, {})], checked=True).replace(b"\x80\x80", b"\x80\xa0"),
                "the checksum does not fit, so nothing of it is taken; "
                "load the logs of its runs again to bring what is lost.",
            ),
            (
                encode([]),
                "damaged at byte 24, only the 0 records before that are taken; "
                "load the logs of its runs again to bring what is lost.",
            ),
        ],
        ids=["empty", "gzip", "cut", "checksum", "no record"],
    )
    def test_what_is_wrong_is_one_sentence(self, tmp_path: Path, content: bytes, sentence: str) -> None:
        file = tmp_path / "a.flb"
        file.write_bytes(content)
        assert decode(file)[1] == f"{file}: {sentence}"

    def test_a_large_file_is_read_in_blocks(self, tmp_path: Path) -> None:
        records = [Record(START + n, {"message": "x" * 1_000, "n": n}) for n in range(5_000)]
        file = tmp_path / "a.flb"
        file.write_bytes(encode(records))
        blocks = list(chunk.read(file))
        assert [record.document["n"] for _, block in blocks for record in block] == list(range(5_000))
        assert max(len(block) for _, block in blocks) < 1_200
        assert sum(size for size, _ in blocks) == file.stat().st_size - HEADER
