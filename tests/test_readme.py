"""README and docs: their commands exist, their links lead somewhere, and the output shown is the real one."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from verl_ingest.cli import app
from verl_ingest.demo import logs

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
SHOWN = "$ verl-ingest step ppo-demo 128\n"


def test_every_command_and_option_has_help() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for name, options in re.findall(r"verl-ingest ([a-z][a-z-]*)((?: +--[a-z-]+)*)", page.read_text()):
        assert name in COMMANDS, f"{page.name}: verl-ingest {name}"
        known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        assert set(options.split()) <= known, f"{page.name}: verl-ingest {name}{options}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_make_targets_of_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)`|^ {4}make ([a-z]+)", page.read_text(), flags=re.MULTILINE)) <= {
        pair for target in targets for pair in ((target, ""), ("", target))
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.usefixtures("templated")
def test_the_step_that_the_readme_shows_is_the_real_one(elasticsearch_url: str, tmp_path: Path) -> None:
    logs.write(tmp_path / "ppo-demo")
    ask(elasticsearch_url, tmp_path, "load", "ppo-demo", "--timezone", "Etc/UTC")
    shown = README.read_text().split(SHOWN, 1)[1].split("```", 1)[0]
    assert without_age(shown) == without_age(ask(elasticsearch_url, tmp_path, "step", "ppo-demo", "128"))


def ask(url: str, folder: Path, *command: str) -> str:
    environment = {**os.environ, "ELASTICSEARCH_URL": url, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "verl_ingest", *command],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def without_age(text: str) -> str:
    """Return the text without how old the run is, and without spaces at the ends of lines."""
    return re.sub(r"\d+ d( \d+ h)? old", "N d old", re.sub(r" +$", "", text, flags=re.MULTILINE)).strip()
