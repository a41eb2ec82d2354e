"""The fixtures that run the command line in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from verl_ingest import cli


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., Outcome]:
    """Run the command line."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["verl-ingest", *words])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return Outcome(exit_.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def ask(elasticsearch_url: str, monkeypatch, command) -> Callable[..., Outcome]:
    """Run the command line on the session's server."""
    monkeypatch.setenv("ELASTICSEARCH_URL", elasticsearch_url)
    return command
