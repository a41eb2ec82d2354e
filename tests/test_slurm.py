"""Agents in Slurm jobs: all lines arrive, and the job ends as it would without them, whatever is wrong with them."""

import re
import shutil
import signal
import stat
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from tests import slurm
from tests.waiting import wait_for
from verl_ingest.cluster import targets
from verl_ingest.cluster.mark import mark
from verl_ingest.cluster.slurm import CANARY, Slurm
from verl_ingest.errors import KitError
from verl_ingest.settings import Deploy, Paths, Settings

LINES = 200
SESSION = uuid.uuid4().hex[:8]
AWAY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.StandIn]:
    with slurm.stand_in(tmp_path_factory.mktemp("stand-in") / "slurm") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Real]:
    if not slurm.can_be_real():
        pytest.skip(slurm.MISSING)
    with slurm.real(tmp_path_factory.mktemp("real") / "slurm") as cluster:
        yield cluster


class Site:
    """A user's place on the cluster: what `deploy` wrote there, and the runs."""

    def __init__(self, place: Path, *, url: str, fluent_bit: str, **deploy: Any) -> None:
        self.place, self.runs, self.shared = place, place / "runs", place / "verl-ingest"
        places = {"folder": str(self.shared), "fluent_bit": fluent_bit, **deploy.pop("slurm", {})}
        paths = Paths(rank=(f"{self.runs}/{{run}}/*rank*.jsonl",), file_logger=(), console=(), rollout=())
        deployed = Deploy(target="slurm", slurm=places, **deploy)
        self.settings = Settings().model_copy(update={"elasticsearch_url": url, "paths": paths, "deploy": deployed})
        self.target = Slurm(self.settings)

    def roll_out(self) -> list[str]:
        self.build = self.place / "build"
        shutil.rmtree(self.build, ignore_errors=True)
        self.build.mkdir(parents=True)
        for name, text in self.target.files().items():
            (self.build / name).write_text(text, encoding="utf-8")
        return list(self.target.roll_out(self.build))

    def change(self, name: str, old: str, new: str) -> None:
        """Edit a file that jobs start the agent with."""
        file = self.shared / "current" / name
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def script(self, run: str, *, before: str = "", after: str = "") -> str:
        """Return a batch script in which a rank on each of two nodes writes LINES lines."""
        return f"""#!/bin/bash
set -euo pipefail
{before}
. {self.shared}/job.sh || true
mkdir -p {self.runs}/{run}
now=$(date +%s%N)
for rank in 0 1; do
    for step in $(seq {LINES}); do
        echo "{{\\"step\\":$step,\\"rank\\":$rank,\\"reward_mean\\":0.5,\\"timestamp_ns\\":$((now + step))}}"
    done >>{self.runs}/{run}/actor_rank$rank.jsonl
done
{after}
"""


def test_the_certificate_of_the_authority_goes_along(tmp_path: Path) -> None:
    own = tmp_path / "authority.pem"
    own.write_text("-----BEGIN CERTIFICATE-----\n")
    settings = Settings().model_copy(
        update={
            "elasticsearch_url": "https://es.example.org:9200",
            "elasticsearch_ca_certs": own,
            "deploy": Deploy(slurm={"folder": "/shared/kit"}),
        }
    )
    files = Slurm(settings).files()
    assert files["ca.pem"] == own.read_text()
    assert "tls.ca_file: /shared/kit/current/ca.pem" in files["fluent-bit.yaml"]


@pytest.fixture
def site(templated: Elasticsearch, tmp_path: Path, elasticsearch_url: str, fluent_bit: str) -> Callable[..., Site]:
    def make(**other: Any) -> Site:
        found = Site(tmp_path, **{"url": elasticsearch_url, "fluent_bit": fluent_bit, **other})
        found.roll_out()
        return found

    return make


def named(name: str) -> str:
    """Return a name for a run that no other session has."""
    return f"slurm-{name}-{SESSION}"


def count(client: Elasticsearch, run: str) -> int:
    client.indices.refresh(index="verl-*", ignore_unavailable=True)
    return client.count(index="verl-*", query={"term": {"run_id": run}}, ignore_unavailable=True)["count"]


def left(site: Site) -> list[str]:
    """Return the processes of the site that run."""
    found = subprocess.run(
        ["pgrep", "--list-full", "--full", f"{site.shared}/versions"], capture_output=True, text=True
    )
    return [line for line in found.stdout.splitlines() if "pgrep" not in line]


def agents(site: Site) -> set[str]:
    """Return the numbers of the site's processes that are Fluent Bit."""
    return {line.split()[0] for line in left(site) if "--supervisor" in line}


def said(job: slurm.Job) -> str:
    return job.output.read_text(encoding="utf-8")


def complaints(text: str) -> list[str]:
    """Return what the agents say but for what they say of a start; both nodes here are one, so ports are taken."""
    usual = ("agents start and follow the run", "is taken; records")
    return [line for line in text.splitlines() if "verl-ingest" in line and not any(each in line for each in usual)]


@contextmanager
def patched(environment: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


class TestJob:
    def test_every_line_arrives_and_the_exit_code_is_the_job_s(
        self, stand_in: slurm.StandIn, site: Callable[..., Site], elasticsearch: Elasticsearch
    ) -> None:
        mine, run = site(), named("ends")
        before = f"trap 'echo $? >{mine.place}/trap' EXIT"
        job = stand_in.submit(mine.script(run, before=before, after="wait; false"), name=run)
        assert job.ends() == 1
        assert count(elasticsearch, run) == 2 * LINES
        assert (mine.place / "trap").read_text() == "1\n"  # the script's own trap
        assert complaints(said(job)) == []
        assert f"follow the run {run}" in said(job)
        assert left(mine) == []

    def test_term_before_the_time_is_over(
        self, stand_in: slurm.StandIn, site: Callable[..., Site], elasticsearch: Elasticsearch
    ) -> None:
        mine, run = site(slurm={"agents": "job"}), named("term")
        after = f"""
sleep 600 &
training=$!
trap 'kill -TERM "$training"' TERM
touch {mine.place}/trains
wait "$training" || wait "$training"
"""
        job = stand_in.submit(mine.script(run, after=after), name="other", VERL_INGEST_RUN=run)
        wait_for((mine.place / "trains").exists, timeout=60, what="training")
        job.terminate()
        assert job.ends() == 128 + signal.SIGTERM
        assert count(elasticsearch, run) == 2 * LINES
        assert complaints(said(job)) == []
        assert left(mine) == []

    def test_an_agent_that_dies_is_started_again(
        self, stand_in: slurm.StandIn, site: Callable[..., Site], elasticsearch: Elasticsearch
    ) -> None:
        mine, run = site(slurm={"agents": "job"}), named("dies")
        logs = mine.runs / run
        after = f"until [ -e {mine.place}/go ]; do sleep 0.1; done; cat {logs}/*rank0.jsonl >{logs}/rank2.jsonl"
        job = stand_in.submit(mine.script(run, after=after), name=run)
        wait_for(lambda: count(elasticsearch, run), timeout=60, what="first record")
        killed = agents(mine)
        subprocess.run(["kill", "-KILL", *killed], check=True)
        wait_for(lambda: agents(mine) - killed, timeout=60, what="new agent")
        (mine.place / "go").touch()
        assert job.ends() == 0
        assert count(elasticsearch, run) == 3 * LINES

    def test_elasticsearch_is_away(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site(url=AWAY)
        mine.change("node.sh", "limit_s=60", "limit_s=3")
        job = stand_in.submit(mine.script("slurm-away", after="exit 3"), name="slurm-away")
        assert job.ends() == 3
        told = sorted(complaints(said(job)))
        assert [re.sub(r"\d+ chunks", "N chunks", line) for line in told] == [
            f"verl-ingest: node{number}: 0 bytes of logs are not read, N chunks not delivered ({state} has them and "
            "agent.log); to send what is missing: verl-ingest audit RUN_FOLDER --repair."
            for number, state in enumerate(re.findall(r"\((/\S+) has them", "\n".join(told)), start=1)
        ]
        for state in re.findall(r"\((/\S+) has them", "\n".join(told)):
            assert list(Path(state, "storage").rglob("*.flb"))
            shutil.rmtree(state)
        assert left(mine) == []

    def test_no_fluent_bit(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site(fluent_bit="/nowhere/fluent-bit")
        job = stand_in.submit(mine.script("slurm-without"), name="slurm-without")
        assert job.ends() == 0
        program = "there is no program /nowhere/fluent-bit; set deploy.slurm.fluent_bit."
        assert sorted(complaints(said(job))) == [
            *(f"verl-ingest: node{number}: no agent here: {program}" for number in (1, 2)),
            "verl-ingest: the agents ended before the job's script; what they have not sent is in the logs: "
            "verl-ingest load RUN_FOLDER.",
        ]

    def test_a_fluent_bit_that_does_not_start(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site(slurm={"agents": "job"})
        mine.change("fluent-bit.yaml", "script: normalize.lua", "script: missing.lua")
        job = stand_in.submit(mine.script("slurm-broken"), name="slurm-broken")
        assert job.ends() == 0
        first, last = complaints(said(job))
        assert first.startswith("verl-ingest: node1: no agent here: agent.sh: Fluent Bit refuses ")
        assert "[error] [filter_lua] filter cannot be loaded" in first
        assert last.endswith(" has its logs); to send those of the run: verl-ingest load RUN_FOLDER.")

    def test_logs_of_another_name(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site(slurm={"agents": "job"})
        job = stand_in.submit(mine.script("slurm-this"), name="slurm-that")
        assert job.ends() == 0
        assert "no log file of the run slurm-that was found" in complaints(said(job))[0]

    def test_not_in_a_job(self, site: Callable[..., Site]) -> None:
        mine = site()
        done = subprocess.run(["bash", "-euc", mine.script("x")], capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stderr == "verl-ingest: this is no Slurm job, or srun is not on the PATH; no agents start.\n"


class TestTarget:
    def test_a_second_roll_out_changes_nothing_and_jobs_keep_their_version(self, site: Callable[..., Site]) -> None:
        mine = site()
        first = (mine.shared / "job.sh").resolve()
        assert mine.target.plan(mine.build) == []
        assert mine.roll_out() == []
        (mine.build / "settings.lua").write_text("return {}", encoding="utf-8")
        assert mine.target.plan(mine.build) == [f"change {mine.shared}/current/settings.lua"]
        mine.target.roll_out(mine.build)
        assert mine.target.plan(mine.build) == []
        assert (mine.shared / "job.sh").resolve() != first
        assert first.exists()

    def test_the_secret_is_the_user_s_alone_and_in_no_rendered_file(
        self, site: Callable[..., Site], tmp_path: Path
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text("s3cr3t\n")
        mine = site(secret_file=secret)
        copy = mine.shared / "secret"
        assert copy.read_text() == "s3cr3t\n"
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert f"file://{copy}" in (mine.build / "fluent-bit.yaml").read_text()
        assert not any("s3cr3t" in text for text in mine.target.files().values())
        secret.write_text("new\n")
        assert mine.target.plan(mine.build) == [f"write {copy}, for you alone to read"]

    def test_a_folder_that_cannot_be_written(self, site: Callable[..., Site], tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(KitError, match=r"file/verl-ingest: this can't be written \(Not a directory\); set deploy"):
            site(slurm={"folder": f"{tmp_path}/file/verl-ingest"})

    @pytest.mark.parametrize("kind", ["stand_in", "real"])
    def test_checks_canary_nodes_of_a_job_and_removal(
        self, kind: str, request: pytest.FixtureRequest, site: Callable[..., Site], elasticsearch: Elasticsearch
    ) -> None:
        cluster, mine = request.getfixturevalue(kind), site()
        run = named(f"target-{kind}")
        after = f"touch {mine.place}/wrote; until [ -e {mine.place}/go ]; do sleep 0.1; done; exit 7"
        with patched(cluster.environment):
            checks = {check.name: check.verdict for check in mine.target.check(mine.build)}
            assert (
                checks == {"Slurm": "fine", "folder": "fine", "Fluent Bit": "watch"} or checks["Fluent Bit"] == "fine"
            )
            assert mine.target.nodes(mine.build) == []

            names = mine.target.tried(mine.build)
            assert names == [CANARY]
            tried = mark(mine.settings, node=CANARY, nanoseconds=1_790_000_000_000_000_000)
            mine.target.write(mine.build, {CANARY: tried})
            elasticsearch.indices.refresh(index=tried.index)
            assert elasticsearch.exists(index=tried.index, id=tried.document_id)
            elasticsearch.delete(index=tried.index, id=tried.document_id)
            assert not Path(tried.path).parent.exists()

            job = cluster.submit(mine.script(run, after=after), name=run)
            nodes = wait_for(
                lambda: (found := mine.target.nodes(mine.build)) and all(node.agent for node in found) and found,
                timeout=60,
                what="agents that answer",
            )
            assert [node.name for node in nodes] == ["node1", "node2"]
            wait_for((mine.place / "wrote").exists, timeout=60, what="lines of the job")
            assert mine.target.remove(mine.build, state=False) == [
                f"removed {mine.shared}/job.sh",
                f"kept {mine.shared} for the jobs that run now; undeploy again when they have ended",
            ]
            (mine.place / "go").touch()
            assert job.ends() == 7
            assert count(elasticsearch, run) == 2 * LINES
            assert complaints(said(job)) == []
            assert left(mine) == []
            mine.target.remove(mine.build, state=False)
            assert list(mine.shared.iterdir()) == []

    def test_a_canary_that_is_not_delivered(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site(url=AWAY)
        mine.change("node.sh", "limit_s=60", "limit_s=3")
        tried = mark(mine.settings, node=CANARY, nanoseconds=1_790_000_000_000_000_000)
        with patched(stand_in.environment), pytest.raises(KitError, match=r"an agent says: .* not delivered") as error:
            mine.target.write(mine.build, {CANARY: tried})
        shutil.rmtree(re.findall(r"\((/\S+)/slurm has them", str(error.value))[0])

    def test_a_canary_that_cannot_be_written(self, stand_in: slurm.StandIn, site: Callable[..., Site]) -> None:
        mine = site()
        mine.runs.touch()
        tried = mark(mine.settings, node=CANARY, nanoseconds=1_790_000_000_000_000_000)
        with (
            patched(stand_in.environment),
            pytest.raises(KitError, match=r"slurm: /.* can't be written; may you write"),
        ):
            mine.target.write(mine.build, {CANARY: tried})

    def test_no_slurm_here(self, site: Callable[..., Site], tmp_path: Path) -> None:
        with patched({"PATH": str(tmp_path)}), pytest.raises(KitError, match="needs sinfo, which is not on the PATH"):
            site().target.check(tmp_path)


def test_it_is_the_target_of_the_settings() -> None:
    assert isinstance(targets.of(Settings(deploy=Deploy(target="slurm"))), Slurm)


def test_the_scripts_are_sound(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on the PATH")
    files = Slurm(Settings(deploy=Deploy(target="slurm"))).files()
    names = [name for name in files if name.endswith((".sh", ".sbatch"))]
    for name in names:
        (tmp_path / name).write_text(files[name], encoding="utf-8")
    done = subprocess.run(["shellcheck", *names], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == ""
