"""The doctor as a command: one screen, what is wrong first, what to do first, exit code, JSON."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from tests.command import Outcome
from verl_ingest.checks import examine
from verl_ingest.checks.check import Check
from verl_ingest.checks.examine import Examined, Group
from verl_ingest.edge.trial import free_port
from verl_ingest.settings import Settings
from verl_ingest.show import doctor as show

DOCS = Path(__file__).parents[1] / "docs" / "deploy" / "doctor.md"
AWAY = {"ELASTICSEARCH_URL": "http://127.0.0.1:9"}
FINE = Check("shards", "fine", "5 of 1,000.")
WATCH = Check("disk", "watch", "Little is free.", "add space")
WRONG = Check("templates", "wrong", "One is not there.", "run `verl-ingest apply`")
UNKNOWN = Check("roles", "unknown", "Not shown.")


def found(*checks: Check) -> Examined:
    return Examined([Group("Elasticsearch", checks[:2]), Group("what apply brings", checks[2:])])


def shown(examined: Examined) -> list[str]:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(show.render(examined))
    return [line.rstrip() for line in captured.get().splitlines()]


class TestShow:
    def test_what_is_wrong_comes_first_in_its_group_with_the_remedy_below(self) -> None:
        assert shown(found(FINE, WATCH, UNKNOWN, WRONG)) == [
            "1 wrong, 1 to watch, 1 unknown, 1 fine",
            "",
            "Elasticsearch",
            "watch   disk      Little is free.",
            "                  → add space",
            "fine    shards    5 of 1,000.",
            "",
            "what apply brings",
            "wrong   templates One is not there.",
            "                  → run `verl-ingest apply`",
            "unknown roles     Not shown.",
            "",
            "First templates: run `verl-ingest apply`.",
        ]

    @pytest.mark.parametrize(
        ("checks", "sentence"),
        [
            ((FINE, WATCH, UNKNOWN, WRONG), "First templates: run `verl-ingest apply`."),
            ((UNKNOWN, FINE, WATCH), "First disk: add space."),
            ((FINE, UNKNOWN), "First roles: Not shown."),
            ((FINE, FINE), "All is well: nothing to do."),
        ],
    )
    def test_what_to_do_first(self, checks: tuple[Check, ...], sentence: str) -> None:
        assert found(*checks).first == sentence

    def test_long_sentences_fold_within_100_columns(self) -> None:
        long = Check("disk", "wrong", "word " * 60, "word " * 60)
        assert max(map(len, shown(found(long, FINE)))) <= 100


@pytest.fixture
def doctor(command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """Run the command in an empty folder, with these settings in the environment.

    The server is away unless it is named, and no agent of this machine is looked at.
    """

    def run(*words: str, **environment: str) -> Outcome:
        monkeypatch.chdir(tmp_path)
        for name, value in (AWAY | {"VERL_INGEST_AGENT__METRICS_PORT": str(free_port())} | environment).items():
            monkeypatch.setenv(name, value)
        return command("doctor", *words)

    return run


class TestCommand:
    def test_a_server_that_is_away_stops_only_what_asks_it(self, doctor: Callable[..., Outcome]) -> None:
        done = doctor(VERL_INGEST_KIBANA_URL="http://127.0.0.1:9")
        lines = done.out.splitlines()
        assert (done.code, done.err) == (1, "")
        assert lines[0] == "2 wrong, 2 unknown, 3 fine"
        assert "wrong   server    Elasticsearch at http://127.0.0.1:9 can't be reached (Connection refused)." in lines
        assert "unknown records   Not looked at: Elasticsearch can't be used." in lines
        assert "wrong   Kibana    Kibana at http://127.0.0.1:9 can't be reached (Connection refused)." in lines
        assert lines[-1] == "First server: start it, or set ELASTICSEARCH_URL."

    def test_a_pipe_gets_whole_lines_without_end_spaces(self, doctor: Callable[..., Outcome]) -> None:
        state = f"/{'long-folder/' * 12}state"
        lines = doctor(VERL_INGEST_AGENT__STATE=state).out.splitlines()
        assert lines == [line.rstrip() for line in lines]
        assert any(state in line for line in lines)

    def test_json(self, doctor: Callable[..., Outcome]) -> None:
        done = doctor("--json")
        answer = json.loads(done.out)
        assert (done.code, answer["well"]) == (1, False)
        assert answer["first"] == "First server: start it, or set ELASTICSEARCH_URL."
        assert [group["name"] for group in answer["groups"]] == [
            "Elasticsearch",
            "what apply brings",
            "agent of this machine",
            "records of the last day",
            "pages and dashboards",
        ]
        assert answer["groups"][0]["checks"][0] == {
            "name": "server",
            "verdict": "wrong",
            "found": "Elasticsearch at http://127.0.0.1:9 can't be reached (Connection refused).",
            "remedy": "start it, or set ELASTICSEARCH_URL",
        }

    @pytest.mark.server
    @pytest.mark.usefixtures("templated")
    def test_the_exit_code_is_that_of_what_is_wrong(
        self, doctor: Callable[..., Outcome], elasticsearch_url: str
    ) -> None:
        done = doctor("--json", ELASTICSEARCH_URL=elasticsearch_url)
        answer = json.loads(done.out)
        wrong = [check for group in answer["groups"] for check in group["checks"] if check["verdict"] == "wrong"]
        assert done.code == bool(wrong)
        names = [check["name"] for group in answer["groups"] for check in group["checks"]]
        assert {"server", "disk", "templates", "agent", "records", "service"} <= {*names}


# Those that not every machine and server has.
OTHERS = ("Fluent Bit", "lag", "rejected", "buffer", "locked indices", "privileges", "roles")


@pytest.mark.server
@pytest.mark.usefixtures("demo")
def test_every_group_looks_where_the_server_is_well_and_every_check_is_in_the_docs(elasticsearch_url: str) -> None:
    examined = examine.examine(Settings(elasticsearch_url=elasticsearch_url))
    assert not any(check.found.startswith("Not looked at") for check in examined.checks)
    rows = {line.split(" | ")[0] for line in DOCS.read_text(encoding="utf-8").splitlines()}
    names = [*(check.name for check in examined.checks), *OTHERS, "Kibana's assets", "Grafana's assets"]
    assert [name for name in names if f"| {name}" not in rows] == []
