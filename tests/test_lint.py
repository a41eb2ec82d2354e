"""The configuration's own check: silent on what is rendered, one sentence for each mistake."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from verl_ingest import render
from verl_ingest.cluster import preflight, targets
from verl_ingest.edge import fluentbit, lint
from verl_ingest.errors import InputError
from verl_ingest.settings import Settings

DEFAULTS = Settings.model_construct()
SECURE = DEFAULTS.model_copy(
    update={
        "elasticsearch_url": "https://es.example.org/prefix",
        "agent": DEFAULTS.agent.model_copy(
            update={"username": "agents", "secret_file": "/run/secrets/es", "poll": True, "fluent_bit_513": True}
        ),
    }
)


def config(settings: Settings = DEFAULTS) -> dict[str, Any]:
    return lint.parse(fluentbit.render(settings), "fluent-bit.yaml")


@pytest.mark.parametrize("settings", [DEFAULTS, SECURE], ids=["defaults", "secure"])
def test_what_is_rendered_is_sound(settings: Settings) -> None:
    assert lint.problems(config(settings)) == []


def test_a_secure_server_is_spoken_to_with_verified_tls_and_a_secret_from_a_file() -> None:
    rendered = config(SECURE)
    records, samples = rendered["pipeline"]["outputs"]
    assert rendered["env"] == {"ELASTICSEARCH_SECRET": "file:///run/secrets/es"}
    for output in (records, samples):
        assert (output["host"], output["port"], output["path"]) == ("es.example.org", "443", "/prefix")
        assert (output["tls"], output["tls.verify"], output["tls.verify_hostname"]) == ("on", "on", "on")
        assert (output["http_user"], output["http_passwd"]) == ("agents", "${ELASTICSEARCH_SECRET}")
    assert (records["logstash_prefix"], samples["logstash_prefix"]) == ("verl", "verl-samples")


def test_without_a_user_the_agents_secret_is_an_api_key_whoever_deploys() -> None:
    deployer = {"elasticsearch_username": "deployer", "elasticsearch_password": SecretStr("x")}
    keyed = SECURE.agent.model_copy(update={"username": None})
    for output in config(SECURE.model_copy(update={**deployer, "agent": keyed}))["pipeline"]["outputs"]:
        assert output["http_api_key"] == "${ELASTICSEARCH_SECRET}"
        assert not {"http_user", "http_passwd"} & {*output}


def test_each_family_of_logs_is_an_input_with_its_own_offsets() -> None:
    inputs = config()["pipeline"]["inputs"]
    tails = {each["alias"]: each for each in inputs if each["name"] == "tail"}
    assert list(tails) == ["rank", "file_logger", "console", "rollout"]
    assert tails["rank"]["path"] == "/data/runs/*/logs/*rank*.jsonl*"
    assert len({each["db"] for each in tails.values()}) == len(tails)
    assert {alias for alias, each in tails.items() if each["tag"] == fluentbit.SAMPLES} == {"rollout"}


def change(section: str, position: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    def apply(found: dict[str, Any]) -> None:
        found["pipeline"][section][position] |= values

    return apply


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            lambda found: found["service"].update(flsh="1"),
            "service: Fluent Bit has no property flsh; it would be ignored or refused.",
        ),
        (
            lambda found: found["service"].pop("storage.keep.rejected"),
            "service: without storage.keep.rejected no file keeps what Fluent Bit gives up sending.",
        ),
        (
            change("inputs", 0, refresh_intervall="5"),
            "input rank: Fluent Bit has no property refresh_intervall; it would be ignored or refused.",
        ),
        (
            change("inputs", 1, db="/var/lib/verl-ingest/rank.db"),
            "input file_logger: db /var/lib/verl-ingest/rank.db is also rank's; each would delete the other's offsets.",
        ),
        (
            change("inputs", 0, buffer_max_size="5potato"),
            "input rank: buffer_max_size is '5potato'; it should be of type size.",
        ),
        (
            change("inputs", 0, **{"storage.type": "memory"}),
            "input rank: without storage.type filesystem a crash loses lines whose offset is saved already.",
        ),
        (
            change("inputs", 0, read_from_head="off"),
            "input rank: without read_from_head what was written before the start is never read.",
        ),
        (
            change("inputs", 0, truncate_long_lines="off"),
            "input rank: without truncate_long_lines the first long line ends the reading of its file.",
        ),
        (change("inputs", 0, threaded="on"), "input rank: threaded loses lines in a crash, whatever the storage."),
        (
            change("inputs", 0, tag="other"),
            "tag other: no output takes it; its lines would go nowhere.",
        ),
        (
            change("outputs", 0, write_operation="create"),
            "output records: without id_key event_id and write_operation index a replay writes lines twice.",
        ),
        (
            change("outputs", 0, retry_limit="5"),
            "output records: with a retry_limit an outage loses what has used up its tries.",
        ),
        (
            change("outputs", 0, host="es.example.org", tls="on", **{"tls.verify": "off"}),
            "output records: tls.verify is off for es.example.org; set elasticsearch_ca_certs instead.",
        ),
        (
            change("outputs", 0, http_api_key="c2VjcmV0"),
            "output records: a secret stands in the configuration; give it by agent.secret_file.",
        ),
        (
            lambda found: found["pipeline"]["filters"].append({"name": "rewrite_tag", "match": "*"}),
            "filter 'rewrite_tag': the kit knows no such plugin; known are lua.",
        ),
    ],
)
def test_each_mistake_is_named(mistake: Callable[[dict[str, Any]], None], sentence: str) -> None:
    found = config()
    mistake(found)
    assert lint.problems(found) == [sentence]


def test_deploy_looks_at_each_configuration_that_it_rolls_out(tmp_path: Path) -> None:
    target = targets.of(Settings(deploy={"target": "kubernetes"}))
    render.write(tmp_path, target.files())
    fine = next(preflight.checks(Settings(), target, tmp_path))
    names = "agent/fluent-bit.yaml and kuberay/agent/fluent-bit.yaml"
    assert (fine.verdict, fine.found) == ("fine", f"Nothing in {names} is unknown, nothing loses lines.")
    one = tmp_path / "kuberay" / "agent" / "fluent-bit.yaml"
    one.write_text(one.read_text().replace("storage.type: filesystem", "storage.type: memory"))
    wrong = next(preflight.checks(Settings(), target, tmp_path))
    assert wrong.verdict == "wrong" and wrong.found.startswith(f"{one}: ")


def test_what_is_no_configuration_is_refused() -> None:
    with pytest.raises(InputError, match=r"^a\.yaml, line 2: not YAML; mend it\.$"):
        lint.parse("a: 1\n b: [", "a.yaml")
    with pytest.raises(InputError, match=r"^a\.yaml: no pipeline in it"):
        lint.parse("a: 1", "a.yaml")
