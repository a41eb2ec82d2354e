"""apply against a stand-in of Grafana: what it asks, writes, keeps, refuses, and what it says when Grafana does not."""

from collections.abc import Iterator

import pytest

from tests.stand_ins.grafana import SAVE, TOKEN, Grafana
from tests.stand_ins.recording import Answer
from verl_ingest import grafana as assets
from verl_ingest.errors import KitError
from verl_ingest.install import grafana as install
from verl_ingest.settings import Settings

SERVICE = "https://kit.example"
OWN = {"token": TOKEN, "elasticsearch_api_key": "a2V5", "prometheus_url": "http://prometheus:9090"}
DASHBOARDS = [f"dashboard {item.uid}" for item in assets.dashboards()]
NAMES = [
    "folder verl",
    "data source verl",
    "data source verl-steps",
    "data source verl-prometheus",
    *DASHBOARDS,
]
RUN = DASHBOARDS[0].removeprefix("dashboard ")


@pytest.fixture(params=["11.6.0", "13.0.1"])
def grafana(request) -> Iterator[Grafana]:
    """A Grafana that gives dashboards back as they came, and one that rewrites them."""
    with Grafana(request.param) as server:
        yield server


def chosen(grafana: Grafana, *, service_url: str = SERVICE, **own) -> Settings:
    return Settings(grafana_url=grafana.url, service_url=service_url, grafana=OWN | own)


def bring(grafana: Grafana, *, overwrite: bool = False, **changes):
    """Compare and write as the command does; returns each asset's row by its name."""
    settings = chosen(grafana, **changes)
    with install.connect(settings) as server:
        rows = install.compare(server, settings, overwrite=overwrite)
        install.write(server, rows)
    return {row.name: row for row in rows}


def states(rows) -> dict[str, str]:
    """Return the states of those that are not kept."""
    return {name: row.state for name, row in rows.items() if row.state != "kept"}


def writes(grafana: Grafana) -> list[str]:
    """Return what was written since the last call."""
    found = [str(request) for request in grafana.requests if request.method != "GET"]
    grafana.requests.clear()
    return found


def test_the_first_run_creates_and_the_second_writes_nothing(grafana: Grafana):
    assert states(bring(grafana)) == dict.fromkeys(NAMES, "created")
    assert writes(grafana) == ["POST /api/folders"] + ["POST /api/datasources"] * 3 + [SAVE] * len(DASHBOARDS)
    assert states(bring(grafana)) == {}
    assert writes(grafana) == []


def test_what_is_sent_is_what_the_builders_make(grafana: Grafana):
    bring(grafana)
    sent = [request.json for request in grafana.requests if str(request) == SAVE]
    assert [body["dashboard"] for body in sent] == [item.body for item in assets.dashboards(SERVICE)]
    assert {body["folderUid"] for body in sent} == {"verl"}


def test_grafana_asks_elasticsearch_with_the_key_which_is_nowhere_but_in_its_secrets(grafana: Grafana):
    bring(grafana)
    assert grafana.secrets["verl"] == {"httpHeaderValue1": "ApiKey a2V5"}
    assert grafana.sources["verl"]["jsonData"]["httpHeaderName1"] == "Authorization"
    assert grafana.sources["verl"]["url"] == chosen(grafana).elasticsearch_url
    assert "a2V5" not in str(grafana.sources)
    assert bring(grafana, elasticsearch_url="http://es:9200")["data source verl"].state == "updated"
    assert grafana.sources["verl"]["url"] == "http://es:9200"


def test_without_a_prometheus_there_is_no_such_data_source(grafana: Grafana):
    assert "data source verl-prometheus" not in bring(grafana, prometheus_url=None)


def test_only_what_differs_is_sent_and_the_diff_says_how(grafana: Grafana):
    bring(grafana)
    writes(grafana)
    rows = bring(grafana, service_url="https://moved.example")
    elastic = ["data source verl", "data source verl-steps"]
    assert states(rows) == dict.fromkeys([*elastic, *DASHBOARDS], "updated")
    assert writes(grafana) == [
        "PUT /api/datasources/uid/verl",
        "PUT /api/datasources/uid/verl-steps",
        *[SAVE] * len(DASHBOARDS),
    ]
    for name in (elastic[0], DASHBOARDS[0]):
        assert "\n-" in rows[name].diff and "https://kit.example" in rows[name].diff
        assert "\n+" in rows[name].diff and "https://moved.example" in rows[name].diff
    assert states(bring(grafana, service_url="https://moved.example")) == {}


def test_a_change_by_hand_is_refused_until_it_may_be_overwritten(grafana: Grafana):
    bring(grafana)
    grafana.edit(RUN, "Mine")
    grafana.sources["verl"]["jsonData"]["timeInterval"] = "1s"
    rows = bring(grafana)
    assert states(rows) == {"data source verl": "differs", DASHBOARDS[0]: "differs"}
    for name in states(rows):
        assert rows[name].why.startswith("changed by hand after verl-ingest ")
    assert grafana.dashboards[RUN][-1]["dashboard"]["title"] == "Mine"
    assert states(bring(grafana, overwrite=True)) == {"data source verl": "updated", DASHBOARDS[0]: "updated"}
    assert states(bring(grafana)) == {}


def test_assets_of_another_origin_under_the_kits_ids_are_refused(grafana: Grafana):
    bring(grafana)
    grafana.dashboards[RUN] = [{"dashboard": {"uid": RUN, "title": "Other"}, "message": ""}]
    grafana.sources["verl"] = {"uid": "verl", "type": "loki", "readOnly": False, "jsonData": None}
    rows = bring(grafana)
    assert {name: rows[name].why for name in states(rows)} == {
        "data source verl": "not written by verl-ingest",
        DASHBOARDS[0]: "not written by verl-ingest",
    }


def test_a_dashboard_that_was_imported_by_hand_is_kept():
    with Grafana() as grafana:
        bring(grafana)
        grafana.dashboards[RUN] = [grafana.dashboards[RUN][-1] | {"message": "by hand"}]
        assert states(bring(grafana)) == {}


def test_a_newer_version_of_the_kit_is_not_taken_back(grafana: Grafana, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as newer:
        newer.setattr("verl_ingest.changes.__version__", "99.1.0")
        bring(grafana, service_url="https://moved.example")
    rows = bring(grafana)
    assert {"data source verl", *DASHBOARDS} <= states(rows).keys()
    assert all(row.why.startswith("written by verl-ingest 99.1.0") for row in rows.values() if row.state != "kept")


def test_what_grafana_reads_from_files_is_left_to_them(grafana: Grafana):
    bring(grafana)
    grafana.provisioned |= grafana.dashboards.keys()
    for source in grafana.sources.values():
        source["readOnly"] = True
    writes(grafana)
    rows = bring(grafana, service_url="https://moved.example", overwrite=True)
    assert states(rows) == {}
    assert rows[DASHBOARDS[0]].why == rows["data source verl"].why == install.FROM_A_FILE
    assert writes(grafana) == []


# What goes wrong


@pytest.mark.parametrize(
    ("request_", "answer", "sentence"),
    [
        (
            "GET /api/folders",
            Answer(401, {"message": "Unauthorized"}),
            "Grafana at http://grafana does not accept the login; set VERL_INGEST_GRAFANA__TOKEN to the token of a "
            "service account.",
        ),
        (
            "POST /api/datasources",
            Answer(403, {"message": "You'll need additional permissions: datasources:create"}),
            "Grafana at http://grafana does not let this login do that (You'll need additional permissions: "
            "datasources:create); give the service account of VERL_INGEST_GRAFANA__TOKEN the role Admin.",
        ),
        (
            "GET /api/health",
            Answer(404, "<html>"),
            "http://grafana has no GET /api/health (HTTP 404); is the base path in grafana_url right?",
        ),
        (
            "GET /api/health",
            Answer(301, "", (("location", "https://grafana.example/"),)),
            "http://grafana leads on to https://grafana.example/; mend grafana_url.",
        ),
        (
            "GET /api/health",
            Answer(200, {"status": "ok"}),
            "What answers at http://grafana is not Grafana; mend grafana_url.",
        ),
        (
            "GET /api/health",
            Answer(200, {"database": "ok", "version": "10.4.19"}),
            "Grafana at http://grafana is 10.4.19, and the kit's dashboards are for 11.6 and later; "
            "use such a version, or unset grafana_url.",
        ),
        (
            "GET /api/health",
            Answer(503, {"database": "failing"}),
            "Grafana at http://grafana is not ready (HTTP 503); see its log, or try again in a moment.",
        ),
        (
            SAVE,
            Answer(412, {"message": "It has been changed by someone else", "status": "version-mismatch"}),
            "Grafana at http://grafana refused POST /api/dashboards/db (It has been changed by someone else).",
        ),
    ],
)
def test_each_answer_that_is_no_success_is_one_sentence(grafana: Grafana, request_: str, answer: Answer, sentence: str):
    grafana.overrides[request_] = answer
    with pytest.raises(KitError) as error:
        bring(grafana)
    assert str(error.value).replace(grafana.url, "http://grafana") == sentence


def test_a_grafana_that_keeps_its_version_to_itself_is_used(grafana: Grafana):
    grafana.overrides["GET /api/health"] = Answer(200, {"database": "ok"})
    assert states(bring(grafana)) == dict.fromkeys(NAMES, "created")


def test_nobody_answers():
    with Grafana() as grafana:
        url = grafana.url
    with pytest.raises(
        KitError, match=rf"^Grafana at {url} can't be reached \(Connection refused\); start it, or mend "
    ):
        bring(grafana)


# The command


@pytest.fixture
def served(templated, monkeypatch: pytest.MonkeyPatch) -> Iterator[Grafana]:
    """A Grafana that the settings name."""
    with Grafana() as server:
        monkeypatch.setenv("VERL_INGEST_GRAFANA_URL", server.url)
        yield server


def test_apply_prepares_grafana_too(ask, served: Grafana, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VERL_INGEST_GRAFANA__TOKEN", TOKEN)
    dry = ask("apply", "--dry-run")
    assert dry.out.splitlines()[-2:] == [f"{DASHBOARDS[-1]}: to be created", "Dry run: nothing was written."]
    assert writes(served) == []
    assert ask("apply").code == 0
    assert len(writes(served)) == len(NAMES) - 1
    assert f"{DASHBOARDS[0]}: kept" in ask("apply").out
    assert writes(served) == []


def test_without_a_token_grafana_is_left_alone(ask, served: Grafana):
    done = ask("apply")
    assert (done.code, served.requests) == (0, [])
    assert done.out.endswith("Grafana: left as it is, since VERL_INGEST_GRAFANA__TOKEN is not set.\n")


def test_the_token_is_shown_nowhere(ask, served: Grafana, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VERL_INGEST_GRAFANA__TOKEN", "glsa_secret")
    done = ask("apply")
    assert done.code == 1
    assert "does not accept the login" in done.err
    assert "glsa_secret" not in done.out + done.err
