import base64
import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from tests.documents import line, record, sample
from tests.serving import served
from verl_ingest.catalog import metrics
from verl_ingest.context import why
from verl_ingest.index import client
from verl_ingest.links import page
from verl_ingest.query.elastic import ElasticStore
from verl_ingest.serve.kit import Kit
from verl_ingest.serve.security import local_names
from verl_ingest.settings import Service, Settings

SCRIPT = "<script>alert(1)</script>"


def _login(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_pages_answer(get, demo):
    runs = get("/runs?limit=1000")
    assert runs.status == 200
    assert f'<a href="/verl/runs/{demo}"><bdi>{demo}</bdi></a>' in runs.text
    assert f'<a href="/verl/runs/{demo}/steps/240">240' in runs.text
    assert get("/").location == "/verl/runs"
    run = get(f"/runs/{demo}")
    assert run.status == 200 and "abnormal since step 156" in run.text
    assert f'<a class="button" href="/verl/runs/{demo}/steps/156">Where it began</a>' in run.text
    step = get(f"/runs/{demo}/steps/128")
    assert step.status == 200 and "rank 3 alone drives it" in step.text


def test_pages_are_the_same_behind_a_proxy_that_keeps_the_prefix(get, demo):
    for path in ("/runs", f"/runs/{demo}", f"/runs/{demo}/steps/128", "/static/page.css"):
        assert get(f"/verl{path}").status == get(path).status == 200
    assert get("/verlang").status == 404


def test_json_is_that_of_the_command_line(get, ask, demo, service_settings, monkeypatch):
    for name in ("service_url", "kibana_url", "grafana_url"):
        monkeypatch.setenv(f"VERL_INGEST_{name.upper()}", getattr(service_settings, name))

    def printed(*words: str):
        return json.loads(ask(*words, "--json").out)

    def without_age(body):
        body["completeness"].pop("age_s")
        return body

    for path, words in (
        ("128", ("128",)),
        ("last", ("last",)),
        ("-2", ("-2",)),
        ("128?window=20&rank=3&stage=reward", ("128", "--window", "20", "--rank", "3", "--stage", "reward")),
    ):
        found = get(f"/api/runs/{demo}/steps/{path}").json()
        assert without_age(found) == without_age(printed("step", demo, *words))
    [run] = [run for run in get("/api/runs?limit=1000").json() if run["run_id"] == demo]
    [same] = [run for run in printed("runs", "--limit", "1000") if run["run_id"] == demo]
    assert run | {"age_s": 0} == same | {"age_s": 0}


def test_the_json_of_a_run_is_its_why(get, ask, demo):
    def without_age(body):
        return body | {"age_s": 0, "exit": body["exit"] | {"sentence": ""}}

    assert without_age(get(f"/api/runs/{demo}").json()) == without_age(json.loads(ask("why", demo, "--json").out))


def test_runs_over_each_other(get, write):
    values = {"up": [1.0, 2.0, 3.0], "down": [3.0, 2.0, 1.0]}
    write(
        record(f"over {run}", step, step=step, rank=rank, metrics={"loss": value})
        for run, line_ in values.items()
        for step, value in enumerate(line_, 1)
        for rank in (0, 1)
    )
    write(
        record(f"over {run}", 0, kind="event", event="config", extra={"config": {"actor.lr": rate, "seed": 1}})
        for run, rate in (("up", 1e-6), ("down", 2e-6))
    )
    address = page.compare("", "over up", "over down", "over all", metric="loss")
    answer = get(address + "&smooth=0.5&run=")
    assert answer.status == 200 and answer.text.count('class="own c') == 2
    assert "There is no run &#39;over all&#39;" in answer.text
    assert '<th scope="row">actor.lr</th><td>1e-06</td><td>2e-06</td>' in answer.text and "seed" not in answer.text
    found = get(f"/api{address}").json()
    assert [run["points"] for run in found["runs"]] == [
        [[1, 1.0, 1.0, 1.0], [2, 2.0, 2.0, 2.0], [3, 3.0, 3.0, 3.0]],
        [[1, 3.0, 3.0, 3.0], [2, 2.0, 2.0, 2.0], [3, 1.0, 1.0, 1.0]],
    ]
    assert found["config"] == {
        "runs": ["over up", "over down"],
        "differences": [{"key": "actor.lr", "values": [1e-6, 2e-6]}],
    }
    assert found["problems"][0].startswith("There is no run 'over all'")
    assert get("/api/compare?run=over+up&metric=no*").json()["problems"] == ["Run 'over up' has no metric no*."]
    assert get("/compare").status == 200
    assert get("/compare?" + "&".join(f"run=r{n}" for n in range(9))).status == 400
    assert get("/compare?run=a&smooth=1").status == 400


def test_a_step_by_another_name_leads_to_its_number(get, demo):
    for name, number in (("last", 240), ("-2", 239), ("first-bad", 156), ("2026-03-01T16:26:13", 128), ("0128", 128)):
        assert get(f"/runs/{demo}/steps/{name}?rank=3").location == f"/verl/runs/{demo}/steps/{number}?rank=3"


def test_the_next_and_previous_abnormal_step(get, write):
    steps = [record("humps", n, step=n, rank=0, metrics={"loss": 0.5 + n % 3 / 100}) for n in range(1, 60)]
    write(
        [*steps, line("humps", 20.5, "bad", step=20, level="error"), line("humps", 40.5, "bad", step=40, level="error")]
    )
    assert get("/runs/humps/steps/30/next-anomaly").location == "/verl/runs/humps/steps/40"
    assert get("/runs/humps/steps/30/previous-anomaly").location == "/verl/runs/humps/steps/20"
    nothing = get("/runs/humps/steps/50/next-anomaly")
    assert nothing.status == 200 and "after step 50 is abnormal" in nothing.text


def test_when_the_trouble_of_a_step_began_comes_after_its_page(get, demo):
    address = re.search(r'data-episode="([^"]+)"', get(f"/runs/{demo}/steps/163").text)[1]
    parts = get(address)
    assert parts.status == 200 and "It began at step 160." in parts.text
    assert f'href="/verl/runs/{demo}/steps/160"' in parts.text
    assert "data-episode" not in get(f"/runs/{demo}/steps/120").text


def test_whole_texts_of_a_sample(get, write):
    document = sample("talks", 1, 5, 0.1, input="why?", output="x" * 100_000)
    write([record("talks", 1, step=5, metrics={"loss": 1.0}), document])
    found = get(f"/api/runs/talks/steps/5/samples/{document['event_id']}").json()
    assert (found["input"], len(found["output"])) == ("why?", 100_000)
    assert get("/api/runs/talks/steps/5/samples/none").status == 404
    assert get(f"/api/runs/humps/steps/5/samples/{document['event_id']}").status == 404


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/runs/ask-demo/steps/999", 404, "Run 'ask-demo' has no step 999; the nearest is 240."),
        ("/runs/ask-demo/steps/x", 400, "'x' is not a step; write a number"),
        ("/runs/ask-demo/steps/99999999999999999999", 400, "is too large"),
        (
            "/runs/ask-demo/steps/128?window=501",
            400,
            "window can't be used: Input should be less than or equal to 500.",
        ),
        ("/runs/ask-demo/steps/128?rank=x", 400, "rank can't be used:"),
        ("/runs/ask-demo/steps/128?rank=4294967296", 400, "rank can't be used:"),
        ("/runs?limit=100000", 400, "limit can't be used:"),
        ("/runs/ask-dem0", 404, "There is no run 'ask-dem0', but others are called alike."),
        ("/runs/%FF", 404, "There is no run"),
        ("/nothing", 404, "There is no such page."),
        ("/static/app.py", 404, "There is no such page."),
        ("/static/..%2Fapp.py", 404, "There is no such page."),
    ],
)
def test_what_cannot_be_shown_is_a_page_with_one_sentence(get, demo, path, status, sentence):
    answer = get(path)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    [heading] = re.findall("<h1>(.*?)</h1>", answer.text)
    assert sentence in heading.replace("&#39;", "'")
    assert 'href="/verl/runs' in answer.text


def test_the_same_as_json(get, demo):
    answer = get("/api/runs/ask-dem0/steps/5")
    assert answer.status == 404 and demo in answer.json()["instead"]
    assert answer.json()["error"].startswith("There is no run 'ask-dem0'")
    assert get("/api/nothing").json()["error"] == "There is no such page."
    assert get(f"/api/runs/{demo}/steps/1?rank=-1").status == 400


def test_only_reading(get, demo):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert get(f"/runs/{demo}/steps/128", method=method).status == 405


@pytest.mark.parametrize(
    "path", ["/runs", "/runs/none", "/static/page.js", "/api/runs", "/healthz", "/nothing", "/drilldown"]
)
def test_every_answer_has_the_headers_that_bind_a_browser(get, path):
    headers = get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers


def test_pages_load_nothing_from_elsewhere_and_have_no_script_or_style_inline(get, demo):
    for path in ("/runs", f"/runs/{demo}", f"/runs/{demo}/steps/128", f"/compare?run={demo}", "/nothing"):
        text = get(path).text
        assert not re.findall(r'(?:src|<link[^>]* href)="(?!/verl/static/|data:,)', text)
        assert not re.findall(r"<script(?![^>]*(?:src=|application/json))|<style|\sstyle=|\son\w+=", text)


def test_files_may_be_kept_and_pages_not(get, demo):
    for address in re.findall(r'"(/verl/static/[^"]+)"', get(f"/runs/{demo}/steps/128").text):
        answer = get(address)
        assert answer.status == 200 and "immutable" in answer.headers["cache-control"]
    assert get("/runs").headers["cache-control"] == "no-store"


def test_hostile_texts_stay_texts(get, write):
    name = f'"><img src=x onerror=alert(1)>{SCRIPT}'
    write(
        [
            record(name, 1, step=5, rank=0, host=SCRIPT, stage=SCRIPT, metrics={f"loss{SCRIPT}": 1.0}),
            line(name, 2, f"</script>{SCRIPT}", step=5, level="error", rank=0),
            sample(name, 3, 5, 0.1, input=SCRIPT, output=f"</script>{SCRIPT}", uid=SCRIPT),
        ]
    )
    step = get(f"/drilldown?run_id={quote(name)}&step=5&metric={quote(SCRIPT)}").location
    for path in (step, step.rpartition("/steps/")[0], "/runs?limit=1000", f"/drilldown?run_id={SCRIPT}&step=1"):
        text = get(quote(path, safe="/?&=%~")).text
        assert "<img" not in text and "<script>" not in text and text.count("<script") == text.count("</script>")


@pytest.mark.parametrize(
    "name", ["*", "ask-*", "ask-demo OR run_id:other", '{"match_all":{}}', 'ask-demo" or "', "_all"]
)
def test_a_query_cannot_be_widened(get, demo, name):
    quoted = quote(name, safe="")
    for path in (f"/runs/{quoted}/steps/128", f"/api/runs/{quoted}/steps/128", f"/drilldown?run_id={quoted}&step=128"):
        assert get(path).status == 404


@pytest.mark.parametrize("label", ["metric=*", "metric=%22%7D", "stage=*", "metric=" + "x" * 4_000])
def test_labels_cannot_break_a_query(get, demo, label):
    assert get(f"/drilldown?run_id={demo}&t=1772382373000&{label}").location.startswith(f"/verl/runs/{demo}/steps/128")


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example/", "%2F%5Cevil.example", "javascript:alert(1)"]
)
def test_no_way_back_to_elsewhere(get, demo, back):
    location = get(f"/drilldown?run_id={demo}&step=128&back={back}").location
    assert location == f"/verl/runs/{demo}/steps/128"
    assert "evil" not in get(f"/runs/{demo}/steps/128?back={quote(back, safe='')}").text


def test_long_addresses_are_refused(get, demo):
    assert get(f"/runs/{demo}/steps/128?metric={'x' * 8_200}").status == 414
    assert get(f"/runs/{'x' * 8_200}").status == 414


def test_a_login(elasticsearch_url, store):
    service = Service(username="eva", password="wörd:1")
    with served(Settings(elasticsearch_url=elasticsearch_url, service=service), store) as get:
        refused = get("/runs")
        assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        for wrong in ("eva:word", "eva:", "eve:wörd:1", "eva", ""):
            assert get("/runs", Authorization=_login(wrong)).status == 401
        for broken in ("Basic", "Basic ***", "Bearer x", "Basic d8O2"):
            assert get("/runs", Authorization=broken).status == 401
        for path in ("/runs", "/metrics", "/static/page.css", "/api/runs"):
            assert get(path).status == 401
            assert get(path, Authorization=_login("eva:wörd:1")).status == 200
        assert get("/runs", X_Forwarded_User="eva").status == 401
        assert get("/healthz").status == 200


@pytest.mark.parametrize(("proxies", "status"), [("127.0.0.0/8", 200), ("10.0.0.0/8", 403)])
def test_a_user_that_a_proxy_names(elasticsearch_url, store, proxies, status):
    service = Service(user_header="X-Forwarded-User", proxies=(proxies,))
    with served(Settings(elasticsearch_url=elasticsearch_url, service=service), store) as get:
        assert get("/runs", X_Forwarded_User="eva").status == status
        assert get("/runs", X_Forwarded_User="eva", X_Forwarded_For="10.1.1.1").status == status
        assert get("/runs", X_Forwarded_User="").status == 403
        assert get("/runs").status == 403


def test_a_page_elsewhere_cannot_read_through_a_name_of_its_own(service_settings, store):
    with served(service_settings, store, hosts=local_names(service_settings, "127.0.0.1")) as get:
        for host in ("127.0.0.1:9110", "localhost", "[::1]:9110", "kit.example", "KIT.example:443"):
            assert get("/runs", Host=host).status == 200
        for host in ("evil.example", "127.0.0.1.evil.example", "", "evil@127.0.0.1x"):
            assert get("/runs", Host=host).status == 421


def test_a_store_that_is_away_is_a_page_and_is_counted(monkeypatch):
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:9")
    settings = Settings()
    with client.connect(settings) as server, served(settings, ElasticStore(server)) as get:
        answer = get("/runs/a/steps/5")
        assert answer.status == 503
        assert "Elasticsearch at http://127.0.0.1:9 can&#39;t be reached" in answer.text
        assert get("/api/runs").json()["error"].startswith("Elasticsearch at http://127.0.0.1:9 can't be reached")
        assert "verl_ingest_store_errors_total 2.0" in get("/metrics").text
        assert get("/healthz").status == 200


def test_requests_are_counted_by_route_without_names(get, demo):
    get(f"/runs/{demo}/steps/128")
    text = get("/metrics").text
    assert 'verl_ingest_requests_total{route="/runs/{run:path}/steps/{step_name}",status="200"}' in text
    assert "verl_ingest_request_seconds_bucket" in text
    assert demo not in text


def test_the_description_names_every_json_answer(get):
    described = get("/api/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/runs",
        "/api/runs/{run}",
        "/api/compare",
        "/api/runs/{run}/steps/{step_name}",
        "/api/runs/{run}/steps/{step_name}/samples/{event_id}",
        "/api/drilldown",
    }
    assert all(of["get"]["summary"] and of["get"]["description"] for of in described["paths"].values())
    assert get("/docs").status == get("/redoc").status == 404


def test_serve_listens_and_says_where(elasticsearch_url, demo):
    process = subprocess.Popen(
        [sys.executable, "-m", "verl_ingest", "serve", "--port", "0"],
        env={**os.environ, "ELASTICSEARCH_URL": elasticsearch_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/runs", process.stdout.readline())[0]
        with urllib.request.urlopen(f"{address}/{demo}/steps/128", timeout=60) as answer:
            assert "rank 3 alone drives it" in answer.read().decode()
    finally:
        process.terminate()
        assert process.communicate(timeout=60)[1] == ""


def test_a_port_that_is_taken_is_one_sentence(ask):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        outcome = ask("serve", "--port", port)
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: 127.0.0.1 port {port} can't be listened on (Address already in use)")


def test_a_run_is_explained_once_for_all_who_ask_at_the_same_time(store, demo, monkeypatch):
    asked, explain = [], why.explain
    monkeypatch.setattr(why, "explain", lambda *args, **options: asked.append(args) or explain(*args, **options))
    kit = Kit(Settings(), store, metrics.load())
    with ThreadPoolExecutor(4) as readers:
        told = list(readers.map(kit.explain, [demo] * 4))
    assert len(asked) == 1
    assert all(each is told[0] for each in told)
