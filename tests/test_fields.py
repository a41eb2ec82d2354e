import copy

import pytest

from verl_ingest.catalog import CatalogueError, fields

LONG_LINE = {
    "@timestamp": "2026-03-01T16:00:09.350000038Z",
    "time_source": "record",
    "run_id": "ppo-demo",
    "stage": "actor",
    "kind": "metric",
    "step": 1,
    "step_key": "ppo-demo|1",
    "step_source": "record",
    "rank": 5,
    "host.name": "train-node-02",
    "process.pid": 4105,
    "metrics": {"actor_loss": -0.02714},
    "metric_name": "actor_loss",
    "value": -0.02714,
    "event_id": "3lbyH1vNAAAAAAAqx3kQ",
}
SAMPLE = {
    "@timestamp": "2026-03-01T16:00:09Z",
    "kind": "sample",
    "stage": "rollout",
    "sample.score": 1,
    "sample.split": "train",
    "extra": {"acc": {"pred": [1, None]}},
}

STEP = {"name": "step", "type": "long", "short": "Trainer step.", "example": 128, "from": "`step`"}
NAMES = {
    "name": "names",
    "type": "keyword",
    "list": True,
    "short": "Names.",
    "example": ["a"],
    "from": "the line",
}
ALIAS = {"name": "schritt", "type": "alias", "path": "step", "short": "Another word."}
FLAGS = {"nan": "Was NaN."}


def catalogue(**changes):
    """Return a small catalogue whose field `step` has the changes; None takes a key away."""
    step = {**STEP, **changes}
    return {
        "fields": [{key: value for key, value in step.items() if value is not None}, NAMES, ALIAS],
        "flags": dict(FLAGS),
        "rules": {"empty": "The line is empty."},
    }


def test_the_catalogue_holds_what_the_record_table_promises():
    known = fields.load().by_name
    assert known["@timestamp"].type == "date_nanos"
    assert known["step"].mapping == {"coerce": False}
    assert known["hostname"].path == "host.name"
    assert known["flags"].is_list
    assert known["sample.score"].index == "samples"
    assert known["event_id"].mapping == {"index": False, "doc_values": False}
    assert "nan" in fields.load().flags


def test_a_small_catalogue_is_read():
    small = fields.check(catalogue(mapping={"coerce": False}, index="records"))
    assert [field.name for field in small.fields] == ["step", "names", "schritt"]
    assert small.by_name["step"] == fields.Field(
        name="step",
        type="long",
        short="Trainer step.",
        example=128,
        source="`step`",
        index="records",
        mapping={"coerce": False},
    )
    assert small.flags == FLAGS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": None}, "step has no type; add it"),
        ({"short": None}, "step has no short; add it"),
        ({"short": ""}, "step has no short; add it"),
        ({"from": None}, "step has no from; add it"),
        ({"example": None}, "step has no example; add it"),
        ({"type": "lnog"}, "step has the unknown type lnog; use alias, keyword"),
        ({"indx": "records"}, "step has the unknown key indx; use name, type"),
        ({"index": "record"}, "step is in index record; use records or samples"),
        ({"example": "128"}, "example of step does not fit its type: '128' is not a whole number of 64 bits"),
        ({"example": True}, "example of step does not fit its type: True is not"),
        ({"list": True}, "example of step does not fit its type: 128 is not a list"),
        ({"name": "names"}, "names is listed twice"),
        ({"name": "steps"}, "schritt is an alias of step, which is no field"),
    ],
)
def test_a_wrong_entry_is_refused(changes, message):
    with pytest.raises(CatalogueError, match=f"^fields.yml: .*{message}.*[.]$"):
        fields.check(catalogue(**changes))


def test_an_entry_without_a_name_is_shown_as_it_is():
    with pytest.raises(CatalogueError, match=r"the entry \{'type': 'long'.* has no name; add it"):
        fields.check(catalogue(name=None))


@pytest.mark.parametrize("kind", ["flags", "rules"])
@pytest.mark.parametrize("entry", [{None: "Was null."}, {"inf": ""}, {"inf": None}])
def test_a_wrong_flag_or_rule_is_refused(kind, entry):
    content = catalogue()
    content[kind] |= entry
    with pytest.raises(CatalogueError, match="must be a text and say what it means"):
        fields.check(content)


@pytest.mark.parametrize("document", [LONG_LINE, SAMPLE, {}])
def test_a_good_document_has_no_problems(document):
    assert fields.problems(document) == []


@pytest.mark.parametrize(
    "flags", [["nan:reward_mean"], ["unparsed", "-inf:a:b"], ["null:actor/kl_loss", "truncated:message"], []]
)
def test_known_flags_pass(flags):
    assert fields.problems({**LONG_LINE, "flags": flags}) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": 1.0}, "loss: not in the catalogue"),
        ({"host": {"name": "n"}}, "host: not in the catalogue"),
        ({"hostname": "n"}, "hostname: an alias can't be written; write host.name"),
        ({"stage": 1}, "stage: 1 is not a text"),
        ({"stage": None}, "stage: None is not a text"),
        ({"step": "1"}, "step: '1' is not a whole number of 64 bits"),
        ({"step": 1.0}, "step: 1.0 is not a whole number of 64 bits"),
        ({"step": True}, "step: True is not a whole number of 64 bits"),
        ({"step": 2**63}, f"step: {2**63} is not a whole number of 64 bits"),
        ({"rank": 2**31}, f"rank: {2**31} is not a whole number of 32 bits"),
        ({"value": float("nan")}, "value: nan is not a finite number"),
        ({"value": float("-inf")}, "value: -inf is not a finite number"),
        ({"value": 10**400}, f"value: {10**400} is not a finite number"),
        ({"value": False}, "value: False is not a finite number"),
        ({"metrics": {"kl": float("inf")}}, "metrics: {'kl': inf} is not an object of finite numbers"),
        ({"metrics": {"kl": "0.1"}}, "metrics: {'kl': '0.1'} is not an object of finite numbers"),
        ({"metrics": {" ": 0.1}}, "metrics: {' ': 0.1} is not an object of finite numbers"),
        ({"metrics": 0.1}, "metrics: 0.1 is not an object of finite numbers"),
        ({"extra": "x"}, "extra: 'x' is not an object"),
        ({"flags": "unparsed"}, "flags: 'unparsed' is not a list"),
        ({"flags": [1]}, "flags: 1 is not a text"),
        ({"flags": ["nane:reward_mean"]}, "flags: nane:reward_mean is not in the catalogue"),
        ({"nonfinite": ["reward_mean", 3]}, "nonfinite: 3 is not a text"),
        ({"sample.score": 1.0}, "sample.score: only samples carry it"),
    ],
)
def test_a_wrong_document_is_told_what_is_wrong(changes, expected):
    assert expected in fields.problems({**LONG_LINE, **changes})


def test_a_sample_does_not_carry_a_records_field():
    assert fields.problems({**SAMPLE, "event": "resume"}) == ["event: only records carry it"]


@pytest.mark.parametrize("time", ["1970-01-01T00:00:00Z", "2026-03-01T16:00:09.1Z", "2262-04-11T23:47:16.854775807Z"])
def test_a_time_with_up_to_nine_digits_passes(time):
    assert fields.problems({"@timestamp": time}) == []


@pytest.mark.parametrize(
    "time",
    [
        "2026-03-01T16:00:09",
        "2026-03-01 16:00:09Z",
        "2026-03-01T16:00:09+00:00",
        "2026-03-01T16:00:09.1234567890Z",
        "2026-03-01T16:00:09.Z",
        "2026-13-01T16:00:09Z",
        "2026-02-30T16:00:09Z",
        "1969-12-31T23:59:59Z",
        "2262-04-11T23:47:17Z",
        "٢٠٢٦-03-01T16:00:09Z",
        1772380809350000038,
    ],
)
def test_another_time_does_not(time):
    [problem] = fields.problems({"@timestamp": time})
    assert problem.startswith("@timestamp: ")


def test_looking_at_a_document_leaves_it_alone():
    document = copy.deepcopy(LONG_LINE)
    fields.problems(document)
    assert document == LONG_LINE
