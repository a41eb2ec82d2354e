"""The doctor's checks of this machine's agent: the real Fluent Bit, running, killed, with what it gave up."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.filesize import decimal

from tests import fluentbit
from tests.deadletters import REAL
from tests.test_lag import AGENT, BEHIND, FINE, HELD
from tests.waiting import wait_for
from verl_ingest.checks import agents
from verl_ingest.checks.check import Check
from verl_ingest.settings import Agent, Deploy, Settings

GB = 1_000_000_000


def look(settings: Settings) -> dict[str, Check]:
    return {check.name: check for check in agents.check(settings)}


@pytest.fixture
def settings(tmp_path: Path, elasticsearch_url: str) -> Settings:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "rank0.jsonl").write_text("")
    return fluentbit.settings_for(tmp_path / "runs", tmp_path / "state", url=elasticsearch_url)


def test_no_agent_on_this_machine(settings: Settings) -> None:
    assert list(agents.check(settings)) == [
        Check("agent", "fine", f"None on this machine: there is no folder {settings.agent.state}.")
    ]


@pytest.mark.server
@pytest.mark.usefixtures("templated")
class TestRunning:
    @pytest.fixture
    def agent(self, fluent_bit: str, settings: Settings, tmp_path: Path) -> Iterator[fluentbit.Agent]:
        with fluentbit.running(fluent_bit, tmp_path / "agent", settings) as running:
            yield running

    def test_it_is_well_and_then_killed(self, agent: fluentbit.Agent, settings: Settings) -> None:
        wait_for(lambda: look(settings)["lag"].verdict == "fine", timeout=30, what="an agent that has read its file")
        found = look(settings)
        assert {name: check.verdict for name, check in found.items() if name not in ("Fluent Bit", "buffer")} == {
            "agent": "fine",
            "lag": "fine",
            "rejected": "fine",
        }
        assert found["agent"].found.startswith("It runs, for ")
        agent.kill()
        found = look(settings)
        assert found["agent"].verdict == "wrong"
        start = "start Fluent Bit on this node, or set agent.metrics_port; or remove "
        assert found["agent"].remedy == f"{start}{settings.agent.state} if no agent is to come back"
        assert "lag" not in found  # nothing more is known to be behind
        assert found["rejected"].verdict == "fine"

    def test_its_version_is_judged(self, agent: fluentbit.Agent, settings: Settings, fluent_bit: str) -> None:
        printed = subprocess.run([fluent_bit, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"v(\d+\.\d+\.\d+)", printed)[1]
        assert look(settings)["Fluent Bit"] == agents.judge_version(version, settings)


class TestFolder:
    @pytest.fixture(autouse=True)
    def state(self, settings: Settings) -> Path:
        folder = Path(settings.agent.state)
        folder.mkdir()
        return folder

    def test_what_it_gave_up(self, settings: Settings, state: Path) -> None:
        assert look(settings)["rejected"].verdict == "fine"
        (state / "rejected").mkdir()
        shutil.copy(REAL, state / "rejected")
        size = decimal(REAL.stat().st_size)
        found = look(settings)["rejected"]
        assert (found.verdict, found.found) == ("wrong", f"The agent has given up sending 1 chunk, {size}.")
        assert found.remedy.startswith("`verl-ingest dead-letters`")

    def test_what_waits_after_an_undeploy_goes_on_by_a_deploy(self, settings: Settings, monkeypatch) -> None:
        monkeypatch.setattr(agents, "collect", lambda _: replace(FINE, agent=None, waiting=[HELD]))
        found = look(settings.model_copy(update={"deploy": Deploy(target="hosts")}))
        assert (found["agent"].verdict, found["lag"].verdict) == ("wrong", "wrong")
        assert found["agent"].remedy.startswith("run `verl-ingest deploy`, or start Fluent Bit on this node")
        assert found["agent"].remedy.endswith(f"; or remove {settings.agent.state} if no agent is to come back")
        assert found["lag"].found.startswith("Nobody sends: ")
        assert found["lag"].remedy == found["agent"].remedy

    def test_a_folder_of_another_user(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may read all
        found = look(settings)
        assert {name: check.verdict for name, check in found.items()} == {
            "agent": "wrong",  # it does not answer
            "lag": "unknown",
        }
        assert found["lag"].remedy == "run this as the agent's user"

    def test_room_for_what_may_wait(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        def verdict_with(free: float) -> str:
            usage = shutil.disk_usage("/")._replace(free=round(free))
            monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
            return look(settings)["buffer"].verdict

        assert [verdict_with(free) for free in (10.1 * GB, 9.9 * GB, 1_000_000)] == ["fine", "watch", "wrong"]


def test_what_waits_already_needs_no_room_any_more() -> None:
    assert agents.judge_buffer(5 * GB, 4 * GB, 7 * GB).verdict == "fine"
    assert agents.judge_buffer(5 * GB, 2 * GB, 7 * GB).found == "7.0 GB are free where 8.0 GB more may wait."


@pytest.mark.parametrize(
    ("version", "is_set", "verdict", "remedy"),
    [
        ("5.1.1", False, "watch", "update Fluent Bit to 5.1.3 or later"),
        ("4.9.9", False, "watch", "update Fluent Bit to 5.1.3 or later"),
        ("5.1.1", True, "wrong", "update Fluent Bit, or set agent.fluent_bit_513: false"),
        ("5.1.4", False, "watch", "set agent.fluent_bit_513: true"),
        ("5.1.3", True, "fine", ""),
        ("5.2.0", True, "fine", ""),
    ],
)
def test_versions_with_traps(version: str, is_set: bool, verdict: str, remedy: str) -> None:
    found = agents.judge_version(version, Settings(agent=Agent(fluent_bit_513=is_set)))
    assert (found.verdict, found.remedy.startswith(remedy)) == (verdict, True)


class TestLag:
    def test_each_thing_that_is_behind_is_wrong(self) -> None:
        facts = replace(FINE, files=[BEHIND], waiting=[HELD], agent=replace(AGENT, dropped=3))
        found = list(agents.judge_lag(facts))
        assert [check.verdict for check in found] == ["wrong"] * 3
        assert found[0].remedy.startswith("`verl-ingest lag` shows the numbers")
        assert found[2].remedy.startswith("`verl-ingest audit --repair` ships")

    def test_what_is_not_known_is_said_once(self) -> None:
        facts = replace(FINE, troubles=["No agent answers; start it.", "The folder can't be read; run as its user."])
        assert list(agents.judge_lag(facts, known="No agent answers; start it.")) == [
            Check("lag", "unknown", "The folder can't be read.", "run as its user")
        ]

    def test_fine(self) -> None:
        assert list(agents.judge_lag(FINE)) == [Check("lag", "fine", "1 file read, nothing waits for long.")]


@pytest.mark.usefixtures("fluent_bit")
def test_an_older_version_does_not_start_with_what_newer_ones_know(fluent_bit: str, settings: Settings, tmp_path):
    """The trap that judge_version calls wrong is there, as long as the tests run a version before 5.1.3."""
    newer = settings.model_copy(update={"agent": settings.agent.model_copy(update={"fluent_bit_513": True})})
    try:
        with fluentbit.running(fluent_bit, tmp_path / "agent", newer) as running:
            version = look(newer)["Fluent Bit"]
            assert version.verdict == "fine", running.tail()
    except AssertionError as error:
        assert "drop_unrecoverable_records" in str(error)
