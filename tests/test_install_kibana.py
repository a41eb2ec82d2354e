"""apply against a stand-in of Kibana: what it asks, writes, keeps, refuses, and what it says when Kibana does not."""

import copy
from base64 import b64encode
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import urllib3
from urllib3.exceptions import SSLError

from tests.stand_ins.kibana import EXPORT, IMPORT, Kibana
from tests.stand_ins.recording import Answer
from verl_ingest.errors import KitError, SettingsError
from verl_ingest.install import http
from verl_ingest.install import kibana as install
from verl_ingest.kibana import objects
from verl_ingest.settings import Settings

SERVICE = "https://kit.example"
NAMES = [
    "data view verl",
    "saved search verl-step",
    "saved search verl-warnings",
    "saved search verl-nonfinite",
    "saved search verl-lowest-reward",
    "saved search verl-unparsed",
]


@pytest.fixture(params=["8.19.3", "9.4.0"])
def kibana(request) -> Iterator[Kibana]:
    """A Kibana that keeps searches as the kit writes them, and one that keeps them in tabs."""
    with Kibana(request.param) as server:
        yield server


def bring(kibana: Kibana, *, overwrite: bool = False, path: str = "", service_url: str = SERVICE, **settings):
    """Compare and write as the command does; returns each object's row by its name."""
    chosen = Settings(kibana_url=kibana.url + path, service_url=service_url, **settings)
    with install.connect(chosen) as server:
        rows = install.compare(server, objects.objects(chosen), overwrite=overwrite)
        install.write(server, rows)
    return {row.name: row for row in rows}


def states(rows) -> list[str]:
    return [row.state for row in rows.values()]


def asked(kibana: Kibana) -> list[str]:
    """Return the requests since the last call, each once."""
    requests = list(dict.fromkeys(map(str, kibana.requests)))
    kibana.requests.clear()
    return requests


def test_the_first_run_creates_and_the_second_writes_nothing(kibana: Kibana):
    first = bring(kibana)
    assert (list(first), states(first)) == (NAMES, ["created"] * 6)
    assert asked(kibana) == ["GET /api/status", EXPORT, IMPORT]
    assert states(bring(kibana)) == ["kept"] * 6
    assert asked(kibana) == ["GET /api/status", EXPORT]


def test_only_what_differs_is_imported_and_the_diff_says_how(kibana: Kibana):
    bring(kibana)
    rows = bring(kibana, service_url="https://moved.example")
    assert states(rows) == ["updated"] + ["kept"] * 5
    diff = rows["data view verl"].diff
    assert '-        "urlTemplate": "https://kit.example/drilldown?step_key={{value}}"' in diff
    assert '+        "urlTemplate": "https://moved.example/drilldown?step_key={{value}}"' in diff
    assert kibana.requests[-1].body.count(b'"typeMigrationVersion"') == 1
    assert states(bring(kibana, service_url="https://moved.example")) == ["kept"] * 6


def test_what_users_do_in_passing_is_no_change(kibana: Kibana):
    bring(kibana)
    view = kibana.stored["default"]["index-pattern", "verl"]["attributes"]
    view["fieldAttrs"] = view["fieldAttrs"].replace('"step":{', '"step":{"count":3,')
    assert states(bring(kibana)) == ["kept"] * 6


def test_a_change_by_hand_is_refused_until_it_may_be_overwritten(kibana: Kibana):
    bring(kibana)
    stored = kibana.stored["default"]["search", "verl-unparsed"]
    stored["attributes"]["title"] = "Mine"
    rows = bring(kibana)
    assert states(rows) == ["kept"] * 5 + ["differs"]
    assert rows["saved search verl-unparsed"].why.startswith("changed by hand after verl-ingest ")
    assert stored["attributes"]["title"] == "Mine"
    assert states(bring(kibana, overwrite=True)) == ["kept"] * 5 + ["updated"]
    assert states(bring(kibana)) == ["kept"] * 6


def test_a_data_view_of_another_origin_under_the_kits_id_is_refused(kibana: Kibana):
    attributes = {"title": "logs-*", "timeFieldName": "@timestamp"}
    other = {"type": "index-pattern", "id": "verl", "attributes": attributes, "references": []}
    kibana.stored["default"]["index-pattern", "verl"] = other
    row = bring(kibana)["data view verl"]
    assert (row.state, row.why) == ("differs", "not written by verl-ingest")


def test_a_search_of_esql_under_the_kits_id_is_refused_too(kibana: Kibana):
    bring(kibana)
    stored = kibana.stored["default"]["search", "verl-step"]
    attributes = {"title": "x", "kibanaSavedObjectMeta": {"searchSourceJSON": '{"query":{"esql":"FROM x"}}'}}
    kibana.stored["default"]["search", "verl-step"] = {**stored, "attributes": attributes}
    assert bring(kibana)["saved search verl-step"].state == "differs"


def test_a_newer_version_of_the_kit_is_not_taken_back(kibana: Kibana, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as newer:
        newer.setattr("verl_ingest.changes.__version__", "99.1.0")
        bring(kibana, service_url="https://moved.example")
    rows = bring(kibana)
    assert rows["data view verl"].why.startswith("written by verl-ingest 99.1.0, this is ")
    assert rows["saved search verl-step"].state == "differs"


def test_base_path_and_space_are_kept():
    with Kibana(base_path="/k") as kibana:
        bring(kibana, path="/k/s/ml")
        assert asked(kibana) == [
            "GET /k/s/ml/api/status",
            "GET /k/s/ml/api/spaces/space/ml",
            EXPORT.replace("/api", "/k/s/ml/api"),
            IMPORT.replace("/api", "/k/s/ml/api"),
        ]
        assert (len(kibana.stored["ml"]), len(kibana.stored["default"])) == (6, 0)


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({"elasticsearch_api_key": "a2V5"}, "ApiKey a2V5"),
        (
            {"elasticsearch_username": "ü", "elasticsearch_password": "中:x"},
            f"Basic {b64encode('ü:中:x'.encode()).decode()}",
        ),
    ],
)
def test_the_login_is_that_of_elasticsearch(settings: dict[str, str], header: str):
    with Kibana(login=header) as kibana:
        assert states(bring(kibana, **settings)) == ["created"] * 6


# What goes wrong


def failure(kibana: Kibana, **options) -> str:
    with pytest.raises(KitError) as error:
        bring(kibana, **options)
    return str(error.value).replace(kibana.url, "http://kibana")


def refused(status: int, message: str) -> Answer:
    return Answer(status, {"statusCode": status, "error": "x", "message": message})


def test_objects_that_kibana_did_not_take_are_named_though_it_answers_200(kibana: Kibana):
    lacking = {"type": "missing_references", "references": [{"type": "index-pattern", "id": "verl"}]}
    kibana.overrides[IMPORT] = Answer(
        200,
        {
            "success": False,
            "successCount": 4,
            "errors": [
                {"type": "search", "id": "verl-step", "meta": {}, "error": lacking},
                {
                    "type": "index-pattern",
                    "id": "verl",
                    "meta": {},
                    "error": {"type": "unknown", "message": "Too new."},
                },
            ],
        },
    )
    assert failure(kibana) == (
        "Kibana at http://kibana did not take everything: saved search verl-step refers to data view verl, "
        "which is not there; data view verl: Too new."
    )


def test_an_id_that_another_space_has_is_no_success(kibana: Kibana):
    bring(kibana)
    message = failure(kibana, path="/s/ml")
    assert message.startswith(
        "Kibana at http://kibana/s/ml has a data view verl in another space, so it gave this one "
    )


def test_a_space_that_is_not_there_is_never_written_to(kibana: Kibana):
    assert failure(kibana, path="/s/nope") == (
        "Kibana at http://kibana has no space nope, or does not show it to this login; mend kibana_url."
    )
    assert kibana.stored.keys() == {"default", "ml"}


@pytest.mark.parametrize("version", ["7.17.28", "8.18.9", "10.0.0"])
def test_another_version_is_refused_before_anything_is_read(version: str):
    with Kibana(version) as kibana:
        assert failure(kibana) == (
            f"Kibana at http://kibana is {version}, and the kit's saved objects are for 8.19 and 9.x; "
            "use such a version, or unset kibana_url."
        )
        assert asked(kibana) == ["GET /api/status"]


def test_without_a_login_where_one_is_wanted():
    with Kibana(login="ApiKey a2V5") as kibana:
        assert failure(kibana) == (
            "Kibana at http://kibana wants a login; set Elasticsearch's: ELASTICSEARCH_API_KEY, or "
            "ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD."
        )


@pytest.mark.parametrize(
    ("request_", "answer", "sentence"),
    [
        (
            "GET /api/status",
            refused(401, "Unauthorized"),
            "Kibana at http://kibana does not accept the login; set Elasticsearch's: ELASTICSEARCH_API_KEY, "
            "or ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD.",
        ),
        (
            EXPORT,
            refused(403, "Unable to bulk_get index-pattern"),
            "Kibana at http://kibana does not let this login do that (Unable to bulk_get index-pattern); "
            "its role needs the Kibana privileges Discover, Data View Management and Saved Objects Management "
            "in this space, with all rights.",
        ),
        (
            "GET /api/status",
            Answer(404, "<html>nothing here</html>"),
            "http://kibana has no GET /api/status (HTTP 404); is the base path in kibana_url right?",
        ),
        (
            "GET /api/status",
            Answer(302, "", (("location", "https://sso.example/login"),)),
            "http://kibana leads on to https://sso.example/login; mend kibana_url.",
        ),
        (
            "GET /api/status",
            Answer(503, "Kibana server is not ready yet"),
            "Kibana at http://kibana is not ready (HTTP 503); see its log, or try again in a moment.",
        ),
        (
            "GET /api/status",
            Answer(200, "<html>hello</html>"),
            "What answers at http://kibana is not Kibana; mend kibana_url.",
        ),
        (
            "GET /api/status",
            Answer(200, {"status": "ok"}),
            "What answers at http://kibana is not Kibana; mend kibana_url.",
        ),
        ("GET /api/status", Answer(200, [1]), "What answers at http://kibana is not Kibana; mend kibana_url."),
        (
            EXPORT,
            refused(400, "Can't export more than 0 objects"),
            "Kibana at http://kibana can't export data view verl (Can't export more than 0 objects).",
        ),
        (
            IMPORT,
            refused(413, "Payload content length greater than maximum allowed"),
            "Kibana at http://kibana refused POST /api/saved_objects/_import?overwrite=true "
            "(Payload content length greater than maximum allowed).",
        ),
    ],
)
def test_each_answer_that_is_no_success_is_one_sentence(kibana: Kibana, request_: str, answer: Answer, sentence: str):
    kibana.overrides[request_] = answer
    assert failure(kibana) == sentence


def test_nobody_answers():
    with Kibana() as kibana:
        url = kibana.url
    with pytest.raises(
        KitError, match=rf"^Kibana at {url} can't be reached \(Connection refused\); start it, or mend "
    ):
        bring(kibana)


def test_no_answer_in_time(kibana: Kibana, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http, "TIMEOUT_S", 0.05)
    kibana.delay_s = 1
    assert "did not answer in 0.05 s" in failure(kibana)


def test_https_where_http_is_spoken(kibana: Kibana):
    https = copy.copy(kibana)
    https.url = kibana.url.replace("http:", "https:")
    assert "does not speak TLS; write http:// in kibana_url." in failure(https)


def test_a_certificate_that_is_not_trusted(kibana: Kibana, monkeypatch: pytest.MonkeyPatch):
    text = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)"
    monkeypatch.setattr(urllib3.PoolManager, "request", Mock(side_effect=SSLError(text)))
    assert failure(kibana) == (
        "The certificate of Kibana at http://kibana is not trusted (self-signed certificate); "
        "set elasticsearch_ca_certs to the PEM file of the authority that signed it."
    )


def test_a_file_of_certificates_that_is_none(kibana: Kibana, tmp_path):
    with pytest.raises(SettingsError, match=r"^elasticsearch_ca_certs: .* can't be read as a PEM file"):
        bring(kibana, elasticsearch_ca_certs=tmp_path / "nothing.pem")


# The command


@pytest.fixture
def served(templated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kibana]:
    """A Kibana that the settings name."""
    with Kibana() as server:
        monkeypatch.setenv("VERL_INGEST_KIBANA_URL", server.url)
        yield server


def test_apply_prepares_kibana_too(ask, served: Kibana):
    first, second = ask("apply"), ask("apply")
    assert first.code == 0
    assert [f"{name}: created" for name in NAMES] == first.out.splitlines()[-6:]
    assert [f"{name}: kept" for name in NAMES] == second.out.splitlines()[-6:]
    assert list(map(str, served.requests)).count(IMPORT) == 1


def test_a_dry_run_writes_nothing(ask, served: Kibana):
    done = ask("apply", "--dry-run")
    assert done.out.splitlines()[-2:] == ["saved search verl-unparsed: to be created", "Dry run: nothing was written."]
    assert IMPORT not in map(str, served.requests)


def test_a_kibana_that_is_away_keeps_no_template_from_being_written(ask, served: Kibana):
    served.overrides["GET /api/status"] = Answer(503, "")
    done = ask("apply")
    assert done.code == 1
    assert "\nindex template verl-steps: " in done.out
    assert done.err.startswith("error: Kibana at ")


def test_the_work_of_others_is_refused_with_advice(ask, served: Kibana):
    ask("apply")
    served.stored["default"]["search", "verl-unparsed"]["attributes"]["description"] = "Mine"
    done = ask("apply")
    assert done.code == 1
    assert "saved search verl-unparsed: differs (not written by verl-ingest)\n  " in done.out
    assert done.err == (
        "error: Nothing was written to Kibana, because saved search verl-unparsed was not written by "
        "verl-ingest; save yours under another name, and let --overwrite replace the rest.\n"
    )
    assert ask("apply", "--overwrite").code == 0
    served.stored["default"]["search", "verl-unparsed"]["attributes"]["title"] = "Mine"
    done = ask("apply")
    assert "because saved search verl-unparsed was changed by hand after verl-ingest " in done.err
    assert ask("apply", "--overwrite").code == 0
