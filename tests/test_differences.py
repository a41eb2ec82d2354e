"""What differs between two contents, in words."""

import pytest

from verl_ingest import differences


def template(properties=None, **settings):
    return {"template": {"settings": settings, "mappings": {"properties": properties or {}}}, "_meta": {"version": "1"}}


@pytest.mark.parametrize(
    ("old", "new", "phrases"),
    [
        (template(), template({"a.b": {"type": "long"}}), ["1 field new: a.b"]),
        (template({"x": {}, "y": {}}), template(), ["2 fields removed: x, y"]),
        (
            template(),
            template({f"f{number}": {} for number in range(10)}),
            ["10 fields new: f0, f1, f2, f3, f4, f5, f6, f7 and 2 more"],
        ),
        (
            template({"metrics": {"properties": {"kl": {"type": "double"}}}}),
            template({"metrics": {"properties": {"entropy": {"type": "double"}}}}),
            ["1 field new: metrics.entropy", "1 field removed: metrics.kl"],
        ),
        (
            template({"rank": {"type": "long"}}),
            template({"rank": {"type": "integer", "index": False}}),
            ["field rank: index none -> false", "field rank: type long -> integer"],
        ),
        (template(**{"index.n": "1"}), template(**{"index.n": "2"}), ["setting index.n: 1 -> 2"]),
        (template(), template(**{"index.n": "2"}), ["setting index.n: none -> 2"]),
        (template(**{"index.n": "2"}), template(), ["setting index.n: 2 -> none"]),
        (
            template(**{"index.sort.field": ["run_id", "step", "time"]}),
            template(**{"index.sort.field": ["run_id", "step", "rank"]}),
            ["setting index.sort.field: with rank, without time"],
        ),
        ({"template": {"settings": {"index.n": "2"}}}, {"template": {}}, ["setting index.n: 2 -> none"]),
        ({}, template({"rank": {"type": "long"}}), ["1 field new: rank"]),
        (template(list=["a", "b"]), template(list=["b", "a"]), ["setting list: in another order"]),
        ({"priority": 150, "title": "x"}, {"priority": 200}, ["priority: 150 -> 200", "title: x -> none"]),
        ({"panels": [{"text": "x" * 500}]}, {"panels": [{"text": "y" * 500}]}, ["panels: changed"]),
        ({"query": "a\nb"}, {"query": "a"}, ["query: changed"]),
        ({"_meta": {"version": "1"}, "a": 1}, {"_meta": {"version": "2"}, "a": 1}, []),
    ],
)
def test_each_kind_of_change_has_its_phrase(old, new, phrases: list[str]):
    assert list(differences.words(old, new)) == phrases
