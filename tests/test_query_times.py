import pytest

from verl_ingest.errors import InputError
from verl_ingest.query import times


@pytest.mark.parametrize(
    ("text", "milliseconds", "fraction"),
    [
        ("2026-03-01T16:00:09.350000038Z", 1_772_380_809_350, 0.350000038),
        ("2026-03-01T16:00:09.1Z", 1_772_380_809_100, 0.1),
        ("2026-03-01T16:00:09Z", 1_772_380_809_000, 0),
        ("1969-12-31T23:59:59.999Z", -1, -0.001),
    ],
)
def test_the_time_of_a_document(text, milliseconds, fraction):
    document = {"@timestamp": text}
    assert times.milliseconds(document) == milliseconds
    assert times.seconds(document) == pytest.approx(milliseconds // 1_000 + fraction % 1, abs=1e-6)


def test_iso_is_what_documents_carry():
    assert times.iso(1_772_380_809_350) == "2026-03-01T16:00:09.350Z"


@pytest.mark.parametrize(
    ("text", "expected"), [("90s", 90_000), ("1.5h", 5_400_000), ("2 d", 172_800_000), ("1w", 604_800_000)]
)
def test_durations(text, expected):
    assert times.parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "1h30m", "1y"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(InputError, match="is not a duration"):
        times.parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T16:00:09.35",
        "2026-03-01 16:00:09.350000038Z",
        "2026-03-01T16:00:09.350Z",
        "2026-03-01T18:00:09.350+02:00",
    ],
)
def test_times_without_a_zone_are_utc(text):
    assert times.parse_time(text) == 1_772_380_809_350


def test_what_is_no_time_is_refused():
    with pytest.raises(InputError, match="is not a time"):
        times.parse_time("yesterday")
