"""The kit's own image: what its Dockerfile copies is enough for the command; built and run where Docker answers."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.stack import ROOT
from tests.waiting import wait_for
from verl_ingest import __version__
from verl_ingest.local import compose

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COPIED = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, flags=re.MULTILINE)).split()
KEPT = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)
IMAGE = "verl-ingest:test"
COMMANDS = """\
import verl_ingest
from verl_ingest.cli import app
print(verl_ingest.__file__, flush=True)
for words in (["--version"], ["render", "--out", "agent"], ["render", "--dashboards", "dashboards"]):
    app(words, standalone_mode=False)
"""


def test_all_that_is_copied_is_there_and_nothing_else_is_sent() -> None:
    assert COPIED == KEPT
    assert all((ROOT / name).exists() for name in COPIED)
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def test_it_is_pinned_and_not_root() -> None:
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, flags=re.MULTILINE)
    assert len({*bases}) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    assert "\nUSER 1000:1000\n" in DOCKERFILE


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from what the Dockerfile copies and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(source, folder / "source")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, folder / "source"]
    done = subprocess.run(build, capture_output=True, text=True)
    if "No module named pip" in done.stderr:
        pytest.skip("no pip in this environment")
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_has_every_file(wheel: Path) -> None:
    names = {*zipfile.ZipFile(wheel).namelist()}
    files = [
        path.relative_to(folder).as_posix()
        for name in ("verl_ingest", "deploy", "templates")
        for folder in [ROOT / "verl_ingest" if name == "verl_ingest" else ROOT]
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert len(files) > 200
    assert {file for file in files if f"verl_ingest/{file}" not in names} == set()


def test_the_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICSEARCH_")}
    environment["PYTHONPATH"] = str(tmp_path / "site")
    command = [sys.executable, "-c", COMMANDS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, version = done.stdout.splitlines()[:2]
    assert where.startswith(str(tmp_path / "site"))
    assert version == __version__
    assert {path.name for path in (tmp_path / "agent").iterdir()} == {
        path.name for path in (ROOT / "deploy/fluent-bit").iterdir()
    }
    assert (tmp_path / "dashboards/grafana/dashboards/verl-run.json").exists()


@pytest.mark.skipif(not compose.is_available(), reason="no Docker engine answers here")
def test_the_image_builds_runs_and_is_healthy() -> None:
    def docker(*words: str) -> str:
        return subprocess.run(["docker", *words], check=True, capture_output=True, text=True).stdout.strip()

    docker("build", "--tag", IMAGE, str(ROOT))
    assert docker("run", "--rm", IMAGE, "--version") == __version__
    assert docker("run", "--rm", "--entrypoint", "id", IMAGE, "--user") == "1000"
    container = docker("run", "--detach", "--health-interval", "1s", IMAGE)
    try:
        state = ["inspect", "--format", "{{.State.Health.Status}}", container]
        wait_for(lambda: docker(*state) == "healthy", timeout=60, what="health of the image")
    finally:
        docker("rm", "--force", container)
