import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import risontext
from verl_ingest.links import grafana, kibana, page, rison, step
from verl_ingest.settings import Settings

HOSTILE = "r'17 #a!b/中"
NAMES = ["ppo-demo", HOSTILE, ".", "..", "../..", "a/steps/5", "a/", "/a", "%2F", "a%2fb", "~2F", 'say "x" \\', "a\nb"]
ALL = Settings(
    service_url="https://kit.example/verl", kibana_url="https://kb.example/k/s/ml", grafana_url="https://g.example/g"
)
SPAN = (1_764_547_200_123, 1_764_547_212_000)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "!n"),
        (True, "!t"),
        (False, "!f"),
        (-3, "-3"),
        ("stage", "stage"),
        ("log.level", "log.level"),
        ("", "''"),
        ("137", "'137'"),
        ("-x", "'-x'"),
        ("@timestamp", "'@timestamp'"),
        ("it's!", "'it!'s!!'"),
        ("two\nlines", "'two\nlines'"),
        ("word\n", "'word\n'"),
        ("中", "'中'"),
        ([], "!()"),
        ({}, "()"),
        ([["@timestamp", "asc"]], "!(!('@timestamp',asc))"),
        ({"time": {"from": "now-1h", "5": 1}}, "(time:(from:now-1h,'5':1))"),
    ],
)
def test_rison(value, text):
    assert rison.encode(value) == text
    assert risontext.decode(text) == value


@given(VALUES)
def test_rison_reads_back(value):
    assert risontext.decode(rison.encode(value)) == value


@given(VALUES)
def test_rison_in_a_url_reads_back_as_a_query_and_ends_no_link(value):
    text = rison.in_url(value)
    assert not set(text) & set(" \"'()<>[]!*+&#\n")
    assert risontext.decode(parse_qs(f"x={text}", keep_blank_values=True)["x"][0]) == value


def test_kibana_url():
    found = step.for_step(ALL, "gsm8k-1", 137, SPAN)["kibana"]
    assert found == (
        "https://kb.example/k/s/ml/app/discover#/?_tab=%28tabId:new%29"
        # (filters:!(),refreshInterval:(pause:!t,value:60000),time:(from:'2025-11-30T23:59:00.123Z',to:'...'))
        "&_g=%28filters:%21%28%29%2CrefreshInterval:%28pause:%21t%2Cvalue:60000%29"
        "%2Ctime:%28from:%272025-11-30T23:59:00.123Z%27%2Cto:%272025-12-01T00:01:12.000Z%27%29%29"
        # (columns:!(stage,rank,...),dataSource:(dataViewId:verl,type:dataView),filters:!(),interval:auto,
        "&_a=%28columns:%21%28stage%2Crank%2Cmetric_name%2Cvalue%2Clog.level%2Cmessage%29"
        "%2CdataSource:%28dataViewId:verl%2Ctype:dataView%29%2Cfilters:%21%28%29%2Cinterval:auto"
        # query:(language:kuery,query:'run_id : "gsm8k-1" and step : 137'),sort:!(!('@timestamp',asc)))
        "%2Cquery:%28language:kuery%2Cquery:%27run_id%20:%20%22gsm8k-1%22%20and%20step%20:%20137%27%29"
        "%2Csort:%21%28%21%28%27%40timestamp%27%2Casc%29%29%29"
    )


def _discover(url: str) -> tuple[str, dict]:
    """Return what is before the hash, and the values in it as Kibana reads them."""
    before, hash_ = url.split("#", 1)
    return before, {name: risontext.decode(texts[0]) for name, texts in parse_qs(urlsplit(hash_).query).items()}


@pytest.mark.parametrize("name", NAMES)
def test_kibana_reads_the_query_of_every_run(name):
    before, values = _discover(step.for_step(ALL, name, 5, None, rank=3)["kibana"])
    assert before == "https://kb.example/k/s/ml/app/discover"
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    assert values["_a"]["query"] == {"language": "kuery", "query": f'run_id : "{escaped}" and step : 5'}
    assert values["_g"]["time"] == {"from": "now-30d", "to": "now"}
    assert values["_tab"] == {"tabId": "new"}
    (pill,) = values["_a"]["filters"]
    assert pill["query"] == {"match_phrase": {"rank": 3}}
    assert (pill["meta"]["index"], pill["meta"]["params"], pill["$state"]) == (
        "verl",
        {"query": 3},
        {"store": "appState"},
    )


def test_kql_phrase():
    assert kibana.phrase(r'a "b" \c') == r'"a \"b\" \\c"'


def test_grafana_urls():
    assert step.for_step(ALL, HOSTILE, 137, SPAN, rank=3)["grafana"] == (
        "https://g.example/g/d/verl-run?from=1764545400123&to=1764549012000"
        "&var-run_id=r%2717%20%23a%21b%2F%E4%B8%AD&var-step=137&var-attempt=%24__all&var-rank=3"
    )
    assert step.for_step(ALL, "a", 1, None)["grafana"] == (
        "https://g.example/g/d/verl-run?from=now-30d&to=now&var-run_id=a&var-step=1&var-attempt=%24__all"
    )
    explore = urlsplit(step.address(ALL, "explore", 'a "b"', 137, SPAN, rank=3))
    assert explore.path == "/g/explore"
    pane = json.loads(parse_qs(explore.query)["panes"][0])["verl"]
    assert pane["range"] == {"from": "1764547140123", "to": "1764547272000"}
    assert pane["queries"][0]["query"] == r'run_id:"a \"b\"" AND step:137 AND rank:3'
    assert pane["datasource"] == pane["queries"][0]["datasource"]["uid"] == grafana.DATA_SOURCE


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (page.runs(), "/runs"),
        (page.runs("/verl"), "/verl/runs"),
        (page.run("", "ppo-demo"), "/runs/ppo-demo"),
        (page.run("", HOSTILE), "/runs/r~2717~20~23a~21b~2F~E4~B8~AD"),
        (page.run("", ".."), "/runs/~2E."),
        (page.run("", "a~b%2F"), "/runs/a~7Eb~252F"),
        (page.step("", "a/steps/5", 7), "/runs/a~2Fsteps~2F5/steps/7"),
        (page.step("", "a", 7, rank=0, metric="a/b c"), "/runs/a/steps/7?rank=0&metric=a%2Fb%20c"),
        (page.step("", "a", 7, back="/d/x?a=1&b=2"), "/runs/a/steps/7?back=%2Fd%2Fx%3Fa%3D1%26b%3D2"),
        (page.compare("", "a&b", "c", metric="kl"), "/compare?run=a%26b&run=c&metric=kl"),
        (page.drilldown("", "a b", 7, rank=1, to="kibana"), "/drilldown?step=7&rank=1&to=kibana&run_id=a%20b"),
        (
            step.for_step(ALL, HOSTILE, 5, None, rank=2)["page"],
            f"https://kit.example/verl/runs/{page.segment(HOSTILE)}/steps/5?rank=2",
        ),
    ],
)
def test_addresses_of_pages(found, address):
    assert found == address


@given(st.text(min_size=1))
def test_a_run_is_one_plain_segment_and_reads_back(name):
    segment = page.segment(name)
    assert page.run_of(segment) == name
    assert unquote(segment) == segment and "/" not in segment and segment not in (".", "..")


@pytest.mark.parametrize("typed", ["team/exp 5", "a%b", "50%25", "a~b", "中/x"])
def test_a_name_typed_as_it_is_is_read(typed):
    assert page.run_of(typed) == typed


def test_what_is_not_set_has_no_link():
    assert step.for_step(Settings(), "a", 1, SPAN) == {"page": None, "kibana": None, "grafana": None}
    assert step.address(Settings(), "explore", "a", 1, SPAN) is None


def test_a_context_gets_the_links_of_its_step(context_of, demo):
    context = step.add(context_of(demo, 128), ALL, rank=3)
    links = context.body["links"]
    assert links["page"] == f"https://kit.example/verl/runs/{demo}/steps/128?rank=3"
    times = _discover(links["kibana"])[1]["_g"]["time"]
    assert times == {"from": "2026-03-01T16:25:12.000Z", "to": "2026-03-01T16:27:18.850Z"}
    assert links["grafana"].startswith("https://g.example/g/d/verl-run?from=17723")


@pytest.fixture
def link(ask, monkeypatch):
    """Run `verl-ingest link` with the addresses of ALL, but those that are named."""

    def run(*words: str, without: tuple[str, ...] = ()):
        for name in ("service_url", "kibana_url", "grafana_url"):
            monkeypatch.setenv(f"VERL_INGEST_{name.upper()}", "" if name in without else getattr(ALL, name))
        return ask("link", *words)

    return run


def test_link_prints_what_a_step_has(link, ask, demo):
    found = json.loads(link(demo, "128", "--rank", "3", "--json").out)
    assert found == json.loads(ask("step", demo, "128", "--rank", "3", "--json").out)["links"]
    outcome = link(demo, "128", "--rank", "3")
    assert outcome.out == "".join(f"{name:8} {address}\n" for name, address in found.items())
    assert (outcome.code, outcome.err) == (0, "")
    assert link("@last", "1").code == 0


def test_link_of_what_is_not_indexed_says_so(link, demo):
    outcome = link("tomorrow's run", "7")
    assert outcome.out.splitlines()[0] == "page     https://kit.example/verl/runs/tomorrow~27s~20run/steps/7"
    assert "time:%28from:now-30d%2Cto:now%29" in outcome.out
    recent = "Kibana and Grafana look at now-30d to now.\n"
    assert (outcome.code, outcome.err) == (
        0,
        f"There is no run 'tomorrow's run'; `verl-ingest runs` lists them. {recent}",
    )
    assert link(demo, "500").err == f"Run '{demo}' has no step 500 yet. {recent}"
    assert link("tomorrow", "7", without=("kibana_url", "grafana_url")).err == ""


def test_link_names_the_setting_that_is_missing(ask):
    outcome = ask("link", "a", "1")
    assert outcome.out.splitlines() == [
        f"{name:8} none; set {setting} in settings.yml or VERL_INGEST_{setting.upper()}"
        for name, setting in (("page", "service_url"), ("kibana", "kibana_url"), ("grafana", "grafana_url"))
    ]
    assert (outcome.code, outcome.err) == (0, "")


def test_link_works_while_the_server_is_down(link, monkeypatch):
    monkeypatch.setenv("ELASTICSEARCH_URL", "http://127.0.0.1:9")
    outcome = link("a", "1")
    assert outcome.code == 0 and outcome.out.startswith("page     https://kit.example/verl/runs/a/steps/1\n")
    assert outcome.err.startswith("Elasticsearch at http://127.0.0.1:9 can't be reached")
    assert link("a", "last").code == 1


def test_a_step_in_the_terminal_ends_with_its_links(link, ask, demo):
    found = json.loads(link(demo, "128", "--json").out)
    assert ask("step", demo, "128").out.splitlines()[-3:] == list(found.values())


@pytest.mark.parametrize(
    ("back", "address"),
    [
        ("/d/verl-run?orgId=1&from=5", "https://g.example/g/d/verl-run?orgId=1&from=5"),
        ("/g/d/verl-run?var-run_id=a%20b", "https://g.example/g/d/verl-run?var-run_id=a%20b"),
        ("https://g.example/g/d/x?a=1#b", "https://g.example/g/d/x?a=1#b"),
        ("/d/x?file=a..b", "https://g.example/g/d/x?file=a..b"),
        (None, None),
        ("", None),
        ("https://g.example/other", None),
        ("https://g.example.evil/g/", None),
        ("https://g.example/g@evil/", None),
        ("https://user@g.example/g/", None),
        ("http://g.example/g/d", None),
        ("//evil.example/g/", None),
        (r"/\evil.example", None),
        (r"\\evil.example", None),
        ("/\t/evil.example", None),
        (" https://evil.example", None),
        ("/g/../admin", None),
        ("https://g.example/g/%2E%2e/admin", None),
        ("/..", None),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        ("d/verl-run", None),
        ("https:/g.example/g/", None),
    ],
)
def test_the_way_back_leads_to_grafana_only(back, address):
    assert grafana.way_back(ALL.grafana_url, back) == address
    assert grafana.way_back(None, back) is None


def test_the_way_back_to_a_grafana_without_a_path():
    assert grafana.way_back("https://g.example", "/d/x?a=1") == "https://g.example/d/x?a=1"
    assert grafana.way_back("https://g.example", "https://g.example.evil/") is None
