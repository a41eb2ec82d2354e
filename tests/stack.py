"""The compose stack in tests: a checkout of its own, and whether the real Docker is there."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from verl_ingest.local import compose
from verl_ingest.settings import Settings

ROOT = Path(__file__).parents[1]


def has_compose() -> bool:
    try:
        return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    except OSError:
        return False


real_compose = pytest.mark.skipif(not has_compose(), reason="no `docker compose` here")
real_docker = pytest.mark.skipif(
    not (has_compose() and compose.is_available()), reason="no Docker engine with Compose answers here"
)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout as it is cloned, which is the working folder, and no .env in it yet."""
    folder = tmp_path / "checkout"
    (folder / "runs").mkdir(parents=True)
    for name in ("docker-compose.yml", ".env.example"):
        shutil.copy(ROOT / name, folder / name)
    monkeypatch.chdir(folder)
    for name in [*os.environ]:
        if name in (ROOT / ".env.example").read_text() or name.startswith("ELASTICSEARCH_"):
            monkeypatch.delenv(name)
    return folder


def defaults(**other: Any) -> Settings:
    return Settings.model_construct(**{**dict(Settings.model_construct()), **other})


def assigned(path: Path) -> dict[str, str]:
    lines = (line.split("=", 1) for line in path.read_text().splitlines() if "=" in line and line[0] != "#")
    return dict(lines)


def secrets_of(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+_(?:PASSWORD|KEY))=(.*)$", text, flags=re.MULTILINE))
