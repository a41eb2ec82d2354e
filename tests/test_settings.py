"""Settings: file and environment, and one sentence for each way to get them wrong (tests/settings/bad_*.yml)."""

import os
from pathlib import Path

import pytest
import yaml

from verl_ingest import settings
from verl_ingest.errors import SettingsError
from verl_ingest.settings import Settings

FILES = Path(__file__).parent / "settings"
DOCUMENTED = Path(__file__).parents[1] / "settings.yml"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, without any variable that is a setting."""
    for name in os.environ:
        if name.startswith((settings.ENV_PREFIX, "ELASTICSEARCH_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", sorted(FILES.glob("bad_*.yml")), ids=lambda path: path.stem)
def test_a_bad_file_is_refused_with_the_sentence_in_its_first_line(path: Path):
    sentence = path.read_text().splitlines()[0].removeprefix("# ").replace("FILE", str(path))
    with pytest.raises(SettingsError) as refused:
        settings.load(path)
    assert str(refused.value) == sentence


@pytest.mark.parametrize("path", sorted(FILES.glob("good_*.yml")), ids=lambda path: path.stem)
def test_a_good_file_sets_what_it_names_and_nothing_else(path: Path):
    loaded = settings.load(path).model_dump(mode="json")
    given = yaml.safe_load(path.read_text()) or {}
    defaults = Settings().model_dump(mode="json")
    assert {name for name in loaded if loaded[name] != defaults[name]} == set(given)


def test_the_documented_file_holds_every_setting_with_its_default():
    written = yaml.safe_load(DOCUMENTED.read_text())
    assert written == Settings().model_dump(mode="json")
    assert len(written) < 25


def test_every_documented_setting_has_a_comment():
    lines = DOCUMENTED.read_text().splitlines()
    for number, line in enumerate(lines):
        is_setting = ":" in line and not line.lstrip().startswith(("#", "-"))
        holds_others = line == "samples:"
        if is_setting and not holds_others:
            assert lines[number - 1].lstrip().startswith("# "), f"{line} has no comment above it"


def test_settings_of_the_working_folder_are_read():
    Path("settings.yml").write_text("run: here\n")
    assert settings.load().run == "here"


def test_without_a_file_the_defaults_count():
    assert settings.load() == Settings()


@pytest.mark.parametrize(
    ("path", "reason"), [("none.yml", "No such file or directory"), (".", "Is a directory")], ids=["none", "folder"]
)
def test_a_file_that_is_named_must_be_readable(path: str, reason: str):
    with pytest.raises(SettingsError, match=rf"^{path}: the settings can't be read: {reason}\.$"):
        settings.load(Path(path))


def test_a_file_of_other_bytes_is_refused():
    Path("settings.yml").write_bytes(b"run: \xff\xfe\n")
    with pytest.raises(SettingsError, match=r"^settings.yml: not YAML: 'utf-8' codec can't decode byte 0xff"):
        settings.load()


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch):
    Path("settings.yml").write_text("run: file\nnode: file\nelasticsearch_url: http://file:9200\n")
    monkeypatch.setenv("VERL_INGEST_RUN", "environment")
    monkeypatch.setenv("VERL_INGEST_NODE", "")  # as docker compose passes what is not set
    monkeypatch.setenv("VERL_INGEST_SAMPLES__TEXT_PER_STEP", "8")
    monkeypatch.setenv("VERL_INGEST_PATHS__RANK", "/a/{run}/x.jsonl:/b/{run}/y.jsonl")
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://environment:9200/")
    loaded = settings.load()
    assert (loaded.run, loaded.node, loaded.samples.text_per_step) == ("environment", "file", 8)
    assert loaded.paths.rank == ("/a/{run}/x.jsonl", "/b/{run}/y.jsonl")
    assert loaded.run_paths[:2] == loaded.paths.rank
    assert loaded.elasticsearch_url == "http://environment:9200"


def test_the_kits_own_variable_wins_over_the_usual_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://usual:9200")
    monkeypatch.setenv("VERL_INGEST_ELASTICSEARCH_URL", "http://own:9200")
    assert settings.load().elasticsearch_url == "http://own:9200"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "VERL_INGEST_KIBANA_URI",
            "http://localhost",
            "environment: unknown variable VERL_INGEST_KIBANA_URI; did you mean VERL_INGEST_KIBANA_URL?",
        ),
        (
            "VERL_INGEST_TIMEZONE",
            "CET+1",
            "environment: VERL_INGEST_TIMEZONE is 'CET+1': "
            "it should be a zone of the IANA time zone database such as Asia/Shanghai.",
        ),
        (
            "ELASTICSEARCH_URL",
            "localhost",
            "environment: ELASTICSEARCH_URL is 'localhost': it should be a URL such as https://es.example.org:9200.",
        ),
        (
            "VERL_INGEST_SAMPLES__TEXT_PER_STEP",
            "few",
            "environment: VERL_INGEST_SAMPLES__TEXT_PER_STEP is 'few': it should be a whole number.",
        ),
        (
            "VERL_INGEST_SAMPLES",
            "{",
            "environment: VERL_INGEST_SAMPLES is '{': it should be a valid dictionary or instance of Samples.",
        ),
    ],
    ids=["unknown", "value", "usual_name", "nested", "group"],
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        settings.load()
    assert str(refused.value) == sentence


def test_secrets_are_not_shown():
    loaded = settings.load(FILES / "good_cluster.yml")
    assert "hidden" not in f"{loaded!r} {loaded} {loaded.model_dump_json()}"
