"""An older kit's templates and daily indices on a real server, then today's kit: what apply says, what still works."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from elasticsearch import Elasticsearch
from typer.testing import CliRunner

from tests.documents import START, index_of, line
from tests.secured import OPERATOR, Secured
from verl_ingest import cli
from verl_ingest.cli import ask, explore
from verl_ingest.errors import KitError
from verl_ingest.index import mappings

pytestmark = pytest.mark.server

# As the kit's first version with index templates wrote them: without error.id, process.name, step summaries.
OLDER = Path(__file__).parent / "data" / "older-templates"
RUN = "upgraded"
DAY = "verl-2026.03.01"
SAMPLES = "verl-samples-2026.03.01"
EARLIER = "verl-2026.02.28"
WRITTEN_S = 1_772_380_800  # noon of that day

# Not step's JSON: it has all digits, and means of summaries and of records are sums in another order.
QUESTIONS = [
    *(("runs",), ("runs", "--json"), ("link", RUN, "128")),
    *(("step", RUN, step) for step in ("128", "199", "last", "first-bad")),
    *(("step", RUN, "199", *more) for more in (["--rank", "3"], ["--stage", "actor"])),
    *(("why", RUN, "--json"), ("compare", RUN, RUN)),
    *(("series", RUN, "kl_divergence", "--csv", *more) for more in ([], ["--by", "rank"])),
    *(("logs", RUN, *more) for more in ([], ["--level", "warning"], ["--grep", "CUDA"], ["--rank", "3"], ["--json"])),
    *(("share", condition, "--run", RUN, "--last", "10h") for condition in ("reward < 0.5", "reward_mean < 0.6")),
    *(("samples", RUN, *more) for more in (["100"], ["100", "--highest", "3"], ["100", "--longest", "2"])),
    ("samples", RUN, "100", "--grep", "aaa"),
]


@dataclass(frozen=True)
class Said:
    """What a command printed to both streams, and how it ended: the sentence of a KitError, else nothing."""

    out: str
    error: str


def say(secured: Secured, *words: str) -> Said:
    """Run a command of the kit in this process."""
    done = CliRunner().invoke(cli.app, list(words), env=secured.environment("verl_admin"))
    if done.exception is not None and not isinstance(done.exception, KitError | SystemExit):
        raise done.exception
    return Said(done.output, str(done.exception) if isinstance(done.exception, KitError) else "")


def older(server: Elasticsearch) -> None:
    """Put the older kit's templates in place of all others."""
    for name in ("verl-steps", "verl-kit-state"):
        server.options(ignore_status=404).indices.delete_index_template(name=name)
    server.cluster.put_component_template(name="verl@kit", body=body("component-template-verl@kit"))
    for name in ("verl", "verl-samples"):
        server.indices.put_index_template(name=name, body=body(f"index-template-{name}"))


def body(name: str) -> dict:
    return json.loads((OLDER / f"{name}.json").read_text())


def state_of(server: Elasticsearch) -> list:
    """Return all that an apply could write to."""
    answers = (
        server.cluster.get_component_template(),
        server.indices.get_index_template(),
        server.indices.get_mapping(),
    )
    return [answer.body for answer in answers]


@pytest.fixture(scope="module")
def server(secured: Secured) -> Iterator[Elasticsearch]:
    """The server, without any index of other tests, nor later of these."""
    with secured.client(OPERATOR) as client:
        empty(client)
        yield client
        empty(client)


def empty(server: Elasticsearch) -> None:
    for name in server.indices.get_settings(index=mappings.EVERY_PATTERN):
        server.indices.put_settings(index=name, settings={"index.blocks.read_only": None})
        server.indices.delete(index=name)


@pytest.fixture(scope="module", autouse=True)
def then() -> Iterator[None]:
    """Let every answer be given at one time, as all say how old things are."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (ask, explore):
            patched.setattr(module, "now_ms", lambda: START)
        yield


@pytest.fixture(scope="module")
def logs_of_run(demo_logs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's run with its console, and samples of step 100."""
    folder = tmp_path_factory.mktemp("upgrade") / RUN
    shutil.copytree(demo_logs, folder)
    (folder / "rollout").mkdir()
    samples = [
        {"input": f"q{number}", "output": "a" * number, "score": number / 10, "step": 100} for number in range(8)
    ]
    dump = folder / "rollout" / "100.jsonl"
    dump.write_text("".join(f"{json.dumps(sample)}\n" for sample in samples))
    os.utime(dump, (WRITTEN_S, WRITTEN_S))
    return folder


@pytest.fixture(scope="module")
def told(server: Elasticsearch, secured: Secured, logs_of_run: Path) -> dict[str, Said]:
    """What the commands said on the way, in this order; the run's day is one of the older templates to the end."""
    load = ("load", str(logs_of_run), "--timezone", "Etc/UTC")
    older(server)
    told = {"load": say(secured, *load)}
    server.indices.create(index=EARLIER)
    told |= {f"before {question}": say(secured, *question) for question in QUESTIONS}
    there = state_of(server)
    told["dry run"] = say(secured, "apply", "--dry-run")
    assert state_of(server) == there
    told |= {name: say(secured, "apply") for name in ("apply", "again")}
    assert say(secured, "summarize", RUN).error == ""  # before, the server took no summaries
    told |= {f"after {question}": say(secured, *question) for question in QUESTIONS}
    told["audit"] = say(secured, "audit", str(logs_of_run), "--timezone", "Etc/UTC")
    return told


@pytest.fixture(scope="module")
def anew(server: Elasticsearch, secured: Secured, logs_of_run: Path, told: dict[str, Said]) -> dict[str, Said]:
    """The same answers, of indices that today's templates made."""
    server.indices.delete(index=f"{DAY},{SAMPLES},verl_steps", ignore_unavailable=True)
    load = say(secured, "load", str(logs_of_run), "--timezone", "Etc/UTC")
    assert (load.error, "lack" in load.out) == ("", False)
    return {str(question): say(secured, *question) for question in QUESTIONS}


def test_load_says_that_the_templates_are_an_older_kits(told: dict[str, Said]):
    assert told["load"].out.startswith(
        "The server's index templates lack 2 fields (error.id, process.name), by which what is loaded now can't be "
        "searched; run `verl-ingest apply`.\n"
    )
    assert told["load"].error == ""


def test_apply_says_what_it_changes_and_what_that_means(told: dict[str, Said]):
    assert "\n".join(line for line in told["apply"].out.splitlines() if "lifecycle" not in line) == "\n".join(
        [
            "component template verl@kit: updated",
            "  2 fields new: error.id, process.name",
            "  setting index.query.default_field: with process.name, error.id",
            "  setting index.sort.field: with stage, rank",
            "index template verl: updated",
            "index template verl-samples: updated",
            "index template verl-steps: created",
            "index template verl-kit-state: created",
            f"3 existing indices ({EARLIER}, {DAY}, {SAMPLES}): updated",
            "  2 fields new, in records from now on: error.id, process.name",
            "Indices that are there get new fields only; all else counts from the next day's index on.",
        ]
    )
    assert told["apply"].error == ""


def test_a_dry_run_says_the_same(told: dict[str, Said]):
    said = re.sub(": (created|updated)\n", r": to be \1\n", told["apply"].out)
    assert told["dry run"].out == f"{said}Dry run: nothing was written.\n"


def test_a_second_apply_changes_nothing(told: dict[str, Said]):
    states = [line for line in told["again"].out.splitlines() if not line.startswith("Roles")]
    assert len(states) == 5
    assert all(line.endswith(": kept") for line in states)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_an_index_of_the_older_templates_answers_like_a_new_one(told, anew, question: tuple[str, ...], when: str):
    said, expected = told[f"{when} {question}"], anew[str(question)]
    assert (said.error, expected.error) == ("", "")
    without = without_summaries if when == "before" else str
    assert to_nine_digits(without(said.out)) == to_nine_digits(without(expected.out))


def without_summaries(text: str) -> str:
    """Return an answer without what summaries alone tell of a run, and how its columns are spaced."""
    text = re.sub(r'"abnormal\w*":[^,]+,|^\u2013: without step summaries.*\n', "", text, flags=re.MULTILINE)
    return re.sub(r" +(abnormal|since \d+)? *", " ", text)


def to_nine_digits(text: str) -> str:
    """Return a text with its numbers rounded: sums of the same records may be made in another order."""
    return re.sub(r"-?\d+\.\d{9,}", lambda number: f"{float(number[0]):.9g}", text)


def test_an_audit_finds_every_line_in_an_index_of_the_older_templates(told: dict[str, Said]):
    assert told["audit"].error == ""
    assert re.search(r"missing +0", told["audit"].out)


def test_new_fields_are_found_in_records_that_come_after_the_apply(server: Elasticsearch, secured: Secured):
    older(server)
    for day, at_s in (("2026.05.28", 0), ("2026.05.29", 86_400)):
        server.indices.create(index=f"verl-{day}")
        write(server, line("across", at_s, "early", step=1, **{"process.name": "WorkerDict"}))
        if day == "2026.05.28":
            say(secured, "apply")
            write(server, line("across", 1, "late", step=1, **{"process.name": "WorkerDict"}))
    query = {"bool": {"filter": [{"term": {"run_id": "across"}}, {"term": {"process.name": "WorkerDict"}}]}}
    hits = server.search(index="verl-*", query=query, sort=["@timestamp"])["hits"]["hits"]
    assert [(hit["_index"], hit["_source"]["message"]) for hit in hits] == [
        ("verl-2026.05.28", "late"),
        ("verl-2026.05.29", "early"),
    ]


def test_an_index_that_takes_no_new_field_is_named_and_the_others_get_theirs(server: Elasticsearch, secured: Secured):
    older(server)
    for day in ("2027.01.01", "2027.01.02"):
        server.indices.create(index=f"verl-{day}")
    server.indices.put_settings(index="verl-2027.01.01", settings={"index.blocks.read_only": True})
    said = say(secured, "apply")
    assert said.error == ""
    assert "2 existing indices (verl-2027.01.01, verl-2027.01.02): updated\n" in said.out
    assert "Not given the new fields, which can't be searched there: verl-2027.01.01. Elasticsearch at " in said.out
    assert "existing index verl-2027.01.01: to be updated\n" in say(secured, "apply", "--dry-run").out


def test_an_index_that_has_a_field_as_another_type_keeps_it(server: Elasticsearch, secured: Secured):
    older(server)
    server.indices.create(index="verl-2028.01.01", mappings={"properties": {"process.name": {"type": "long"}}})
    assert (
        "existing index verl-2028.01.01: kept (another type in new indices: process.name (long))\n"
        in say(secured, "apply").out
    )


def write(server: Elasticsearch, document: dict) -> None:
    server.index(index=index_of(document), id=document["event_id"], document=document, refresh=True)
