"""Every golden log line becomes the document beside it, and only fields of the catalogue."""

import json
from pathlib import Path

import pytest

from tests import golden, golden_agent
from verl_ingest.catalog import fields
from verl_ingest.settings import OWN_RULES


@pytest.fixture(params=golden.logs(), ids=str)
def log(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_lines_become_the_expected_documents(log: Path) -> None:
    expected = json.loads(golden.expected_path(log).read_text(encoding="utf-8"))
    assert golden.normalise(log) == expected


def test_every_line_is_a_document_or_dropped_by_a_rule(log: Path) -> None:
    result = golden.normalise(log)
    lines = (golden.FOLDER / log).read_bytes().count(b"\n")
    assert len(result["documents"]) + sum(result["dropped"].values()) == lines
    assert len({document["event_id"] for document in result["documents"]}) == len(result["documents"])


def test_lines_are_dropped_by_rules_of_the_catalogue_only(log: Path) -> None:
    assert set(golden.normalise(log)["dropped"]) <= set(fields.load().rules)


def test_settings_know_which_names_of_rules_are_taken() -> None:
    assert set(OWN_RULES) == set(fields.load().rules)


def test_documents_hold_to_the_catalogue(log: Path) -> None:
    for document in golden.normalise(log)["documents"]:
        del document["_index"]
        assert fields.problems(document) == []


def test_the_agent_gives_the_same_documents(log: Path) -> None:
    """What the real Fluent Bit made of the file is committed; test_agent.py shows that it still does."""
    expected = json.loads(golden.expected_path(log).read_text(encoding="utf-8"))["documents"]
    by_agent = json.loads(golden_agent.agent_path(log).read_text(encoding="utf-8"))
    assert [golden_agent.comparable(document) for document in by_agent] == [
        golden_agent.comparable(document) for document in expected
    ]


def test_every_golden_file_has_its_expectation_and_no_expectation_is_left_over() -> None:
    expected = {golden.expected_path(log) for log in golden.logs()}
    assert {path for path in golden.FOLDER.rglob("*.json") if path.name.endswith(golden.EXPECTED)} == expected
