"""The command line as a user runs it: help, errors, exit codes, apply, render."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import verl_ingest
from verl_ingest import cli, render, settings
from verl_ingest.checks import agents
from verl_ingest.checks.check import Check
from verl_ingest.cluster.slurm import Slurm
from verl_ingest.cluster.target import Node

COMMANDS = [
    *("apply", "key", "deploy", "status", "undeploy", "load", "summarize", "audit", "lag", "dead-letters"),
    *("retention", "pin", "unpin", "pins", "doctor"),
    *("runs", "step", "share", "logs", "why", "series", "compare", "samples", "link"),
    *("serve", "render", "check"),
]


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder, with no settings but those of `environment`."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("VERL_INGEST_", "ELASTICSEARCH_"))
    }
    return subprocess.run(
        [sys.executable, "-m", "verl_ingest", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(Path(verl_ingest.__file__).parents[1]), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_help_lists_the_commands_in_the_order_of_the_flow(tmp_path: Path):
    done = run("--help", folder=tmp_path)
    section = done.stdout.split("Commands:\n")[1].split("\n\n")[0]
    assert [line.split()[0] for line in section.splitlines()] == COMMANDS


@pytest.mark.parametrize("command", cli.app.registered_commands, ids=lambda command: command.name)
def test_every_command_says_what_it_does(command):
    assert command.callback.__doc__


def test_the_version(tmp_path: Path):
    assert run("--version", folder=tmp_path).stdout == f"{verl_ingest.__version__}\n"


def test_a_mistake_of_the_user_is_one_sentence_and_exit_code_1(tmp_path: Path):
    (tmp_path / "settings.yml").write_text("es_hosts: x\n")
    done = run("apply", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: settings.yml: unknown key es_hosts; did you mean elasticsearch_url?\n"


def test_the_settings_file_can_be_named(tmp_path: Path):
    (tmp_path / "other.yml").write_text("timezone: Nowhere\n")
    done = run("--settings", "other.yml", "apply", folder=tmp_path)
    assert done.stderr.startswith("error: other.yml: timezone is 'Nowhere': ")


def test_commands_in_a_sentence_are_those_of_the_settings_file_that_was_named(tmp_path: Path, ask):
    file = tmp_path / "my cluster.yml"
    file.write_text("run: r\n")
    sentence = "error: No run 'nobody' is pinned; `verl-ingest pins` lists those that are.\n"
    assert ask("unpin", "nobody").err == sentence
    named = sentence.replace("`verl-ingest", f"`verl-ingest --settings '{file}'")
    assert ask("--settings", str(file), "unpin", "nobody").err == named
    assert ask("unpin", "nobody").err == sentence  # not remembered


def test_remedies_of_the_doctor_are_those_of_the_settings_file_that_was_named(tmp_path: Path, monkeypatch, command):
    file = tmp_path / "cluster.yml"
    file.write_text("elasticsearch_url: http://127.0.0.1:1\n")
    monkeypatch.delenv("ELASTICSEARCH_URL", raising=False)
    check = Check("lag", "wrong", "Behind.", "`verl-ingest lag` shows the numbers")
    monkeypatch.setattr(agents, "check", lambda _: iter([check]))
    assert f"`verl-ingest --settings {file} lag` shows the numbers" in command("--settings", str(file), "doctor").out
    assert "`verl-ingest lag` shows the numbers" in command("doctor").out


@pytest.mark.server
@pytest.mark.usefixtures("templated")
def test_problems_of_a_status_are_those_of_the_settings_file_that_was_named(tmp_path: Path, monkeypatch, ask):
    file = tmp_path / "cluster.yml"
    file.write_text("deploy: {target: slurm, slurm: {folder: /shared}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Slurm, "nodes", lambda *_: [Node("a", None, "No agent answers; run `verl-ingest deploy`.")])
    assert f"run `verl-ingest --settings {file} deploy`." in ask("--settings", str(file), "status").out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--settings", "{}", "apply"], "the settings can't be read: Is a directory"),
        (["load", "{}"], "no log file in this folder"),
        (["audit", "{}"], "no log file in this folder"),
        (["check", "{}"], "the configuration can't be read: Is a directory"),
    ],
)
def test_what_may_not_be_read_is_told_by_who_reads_it(words, why, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything
    monkeypatch.setattr(sys, "argv", ["verl-ingest", *(word.format(tmp_path) for word in words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: {why}")


def test_a_server_that_is_down_is_one_sentence(tmp_path: Path):
    done = run("apply", folder=tmp_path, ELASTICSEARCH_URL="http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr == (
        "error: Elasticsearch at http://127.0.0.1:1 can't be reached (Connection refused); "
        "start it, or set ELASTICSEARCH_URL.\n"
    )


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch):
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(settings, "load", interrupted)
    monkeypatch.setattr(sys, "argv", ["verl-ingest", "apply"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path):
    command = f"{sys.executable} -m verl_ingest --help; echo $? >&2"
    with subprocess.Popen(
        ["bash", "-c", command],
        cwd=Path(verl_ingest.__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == "1\n"


# apply


def test_apply_says_how_each_template_stands(templated, elasticsearch_url: str, tmp_path: Path):
    first, second = (run("apply", folder=tmp_path, ELASTICSEARCH_URL=elasticsearch_url) for _ in range(2))
    assert first.returncode == 0
    assert second.stdout.splitlines() == [
        "component template verl@kit: kept",
        "index template verl: kept",
        "index template verl-samples: kept",
        "index template verl-steps: kept",
        "index template verl-kit-state: kept",
    ]


def test_apply_dry_run_says_what_changes_and_writes_nothing(templated, elasticsearch_url: str, tmp_path: Path):
    many = {"ELASTICSEARCH_URL": elasticsearch_url, "VERL_INGEST_EXPECTED_DOCUMENTS_PER_DAY": "1000000000"}
    run("apply", folder=tmp_path, ELASTICSEARCH_URL=elasticsearch_url)
    for _ in range(2):
        done = run("apply", "--dry-run", folder=tmp_path, **many)
        assert (done.returncode, done.stderr) == (0, "")
        setting = "  setting index.number_of_shards: 1 -> 2\n"
        assert f"component template verl@kit: to be updated\n{setting}index template verl: kept\n" in done.stdout
        assert done.stdout.endswith("Dry run: nothing was written.\n")
    done = run("apply", "--dry-run", "--diff", folder=tmp_path, **many)
    assert f"{setting}--- on the server\n" in done.stdout
    assert '+      "index.number_of_shards": "2",' in done.stdout


def test_apply_refuses_to_replace_the_work_of_others(templated, elasticsearch_url: str, tmp_path: Path):
    templated.indices.put_index_template(name="verl-samples", index_patterns=["verl-samples-*"], priority=201)
    try:
        for option in ([], ["--dry-run"]):
            done = run("apply", *option, folder=tmp_path, ELASTICSEARCH_URL=elasticsearch_url)
            assert done.returncode == 1
            assert "index template verl-samples: differs (not written by verl-ingest)\n  " in done.stdout
            assert "\n--- on the server\n" in done.stdout
            assert done.stderr == (
                "error: Nothing was written to Elasticsearch, because index template verl-samples was not written by "
                "verl-ingest; keep your own settings in verl@custom, and let --overwrite replace the rest.\n"
            )
    finally:
        done = run("apply", "--overwrite", folder=tmp_path, ELASTICSEARCH_URL=elasticsearch_url)
    assert "index template verl-samples: updated (not written by verl-ingest)\n" in done.stdout
    assert "\n--- on the server\n" in done.stdout  # what is lost


# render


def test_the_committed_files_are_fresh():
    assert render.diff(render.root(), render.files()) == ""


def test_a_stale_file_and_a_missing_one_are_shown_and_written_again(tmp_path: Path):
    files = render.files()
    assert sorted(render.write(tmp_path, files)) == sorted(files)
    assert render.write(tmp_path, files) == []
    template, page = tmp_path / "deploy/elasticsearch/index-template-verl.json", tmp_path / "docs/reference/fields.md"
    template.write_text(template.read_text().replace('"priority": 200', '"priority": 100'))
    page.unlink()
    shown = render.diff(tmp_path, files)
    assert '-  "priority": 100,\n+  "priority": 200,' in shown
    assert "--- docs/reference/fields.md\n" in shown
    assert sorted(render.write(tmp_path, files)) == sorted(str(path.relative_to(tmp_path)) for path in (template, page))
    assert render.diff(tmp_path, files) == ""


def test_the_dashboards_are_rendered_for_the_settings(tmp_path: Path):
    done = run("render", "--dashboards", "built", folder=tmp_path, VERL_INGEST_SERVICE_URL="https://kit.example")
    assert done.returncode == 0
    assert "built/kibana/verl.ndjson: written\n" in done.stdout
    assert "https://kit.example/drilldown?step_key={{value}}" in (tmp_path / "built/kibana/verl.ndjson").read_text()
    assert '"https://kit.example"' in (tmp_path / "built/grafana/dashboards/verl-run.json").read_text()
    assert (tmp_path / "built/grafana/provisioning/datasources/verl.yaml").exists()
    again = run("render", "--dashboards", "built", "--out", "x", folder=tmp_path)
    assert again.stderr == "error: --out and --dashboards write different things; give one of them.\n"


def test_a_changed_entry_of_the_catalogue_makes_the_check_fail(tmp_path: Path):
    checkout = Path(verl_ingest.__file__).parents[1]
    for name in ("verl_ingest", "deploy", "docs", "templates"):
        shutil.copytree(checkout / name, tmp_path / name)
    catalogue = tmp_path / "verl_ingest/catalog/fields.yml"
    catalogue.write_text(catalogue.read_text().replace("short: Trainer step.", "short: Step of the trainer.", 1))
    fresh = run("render", "--check", folder=checkout)
    stale = run("render", "--check", folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert (fresh.returncode, fresh.stdout) == (0, "")
    assert stale.returncode == 1
    assert "Trainer step." in stale.stdout
    assert "Step of the trainer." in stale.stdout
    assert stale.stderr == "error: Generated files are stale; run `verl-ingest render` and commit what it writes.\n"


def test_the_rendering_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch):
    before = render.files()
    monkeypatch.setenv("VERL_INGEST_EXPECTED_DOCUMENTS_PER_DAY", "2000000000")
    assert render.files() == before
