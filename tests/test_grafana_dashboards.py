"""The dashboards as they are committed: nothing dangles, overlaps, or is without a title, a sentence or a link."""

import itertools
import json
import re
import urllib.request

import pytest
import yaml

from tests import fluentbit
from tests.waiting import wait_for
from verl_ingest import assets, grafana
from verl_ingest.grafana import sources
from verl_ingest.grafana.panels import UNITS
from verl_ingest.links import grafana as links
from verl_ingest.links import points

DASHBOARDS = {dashboard.uid: dashboard for dashboard in grafana.dashboards()}
# What Grafana itself fills in.
BUILT_IN = re.compile(r"__\w+")
SOURCES = {"${datasource}", "${steps}", "${prometheus}"}
LINKED = {"trend", "timeseries", "heatmap"}

each = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def panels(dashboard):
    for panel in dashboard.body["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


def complaints(body):
    """Return what is wrong with a dashboard, a sentence each."""
    names = {variable["name"] for variable in body["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([body["panels"], body["templating"], body["annotations"]])))
    unknown = [name for name in used - names if not BUILT_IN.fullmatch(name) and not name.isdigit()]
    found = [f"variable {name} is not defined" for name in unknown]
    rows = [panel for panel in body["panels"] if panel["type"] == "row"]
    inner = [panel for row in rows for panel in row["panels"]]
    shown = [panel for panel in body["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in [*body["panels"], *inner]]
    found += [f"id {number} is there twice" for number in {n for n in ids if ids.count(n) > 1}]
    titles = [panel["title"] for panel in [*shown, *inner]]
    found += [f"title {title} is there twice" for title in {t for t in titles if titles.count(t) > 1}]
    cells: dict[tuple[int, int], str] = {}
    for panel in [*body["panels"], *inner]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            found.append(f"{panel['title']} is wider than the grid")
        columns, lines = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        for cell in itertools.product(columns, lines):
            if cells.setdefault(cell, panel["title"]) != panel["title"]:
                found.append(f"{panel['title']} lies on {cells[cell]}")
                break
    for panel in [*shown, *inner]:
        found += [f"{panel['title']}: {problem}" for problem in _panel(panel)]
    return found


def _panel(panel):
    if not panel["title"] or not panel.get("description", "").endswith("."):
        yield "has no title, or no sentence as description"
    config = panel["fieldConfig"]
    properties = [(p["id"], p["value"]) for o in config["overrides"] for p in o["properties"]]
    units = [config["defaults"].get("unit"), *(value for name, value in properties if name == "unit")]
    if unknown := {unit for unit in units if unit is not None} - {*UNITS.values(), "dateTimeAsIso"}:
        yield f"has the unknown unit {unknown}"
    listed = [config["defaults"].get("links", []), *(value for name, value in properties if name == "links")]
    found = [link for links_ in listed for link in links_]
    if not found or (panel["type"] in LINKED and "links" not in config["defaults"]):
        yield "has points without a link"
    for link in found:
        path = link["url"].removeprefix(f"${{{points.SERVICE}:raw}}")
        if not re.fullmatch(r"/drilldown\?.+&back=\$\{__url:percentencode\}", path):
            yield f"has the link {link['url']}"
    refs = [target["refId"] for target in panel["targets"]]
    if len(refs) != len(set(refs)) or not refs:
        yield "has a query twice, or none"
    filters = {step["filter"]["options"] for step in panel["transformations"] if "filter" in step}
    if filters - set(refs):
        yield "transforms the answer of a query that it has not"
    if {target["datasource"]["uid"] for target in panel["targets"]} - SOURCES:
        yield "names a data source instead of a variable"


@each
def test_nothing_is_wrong_with_a_dashboard(dashboard):
    assert complaints(dashboard.body) == []
    assert dashboard.body["uid"] == dashboard.uid
    assert dashboard.body["editable"] is False


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda panel: panel.update(title=""), "has no title"),
        (lambda panel: panel["gridPos"].update(y=0, x=0), "lies on"),
        (lambda panel: panel["gridPos"].update(x=20), "wider than the grid"),
        (lambda panel: panel["fieldConfig"]["defaults"].update(unit="parsecs"), "unknown unit"),
        (lambda panel: panel["fieldConfig"]["defaults"].pop("links"), "without a link"),
        (lambda panel: panel["fieldConfig"]["defaults"]["links"][0].update(url="${service:raw}/runs"), "has the link"),
        (lambda panel: panel["targets"][0]["datasource"].update(uid="verl"), "instead of a variable"),
        (lambda panel: panel["targets"][0].update(query="run_id:${typo}"), "typo is not defined"),
        (lambda panel: panel["targets"].append(panel["targets"][0]), "has a query twice"),
        (lambda panel: panel["transformations"][0].update(filter={"options": "Z"}), "that it has not"),
        (lambda panel: panel.update(id=1), "is there twice"),
    ],
)
def test_what_is_wrong_is_seen(spoil, complaint):
    body = json.loads(json.dumps(DASHBOARDS[links.DASHBOARD].body))
    spoil(body["panels"][1])
    assert any(complaint in found for found in complaints(body))


def test_links_from_the_kit_meet_the_variables():
    url = links.dashboard("https://g.example", "r", 5, since="now-1h", until="now", rank=3)
    named = set(re.findall(r"var-(\w+)=", url))
    assert named == {"run_id", "step", "attempt", "rank"}
    assert named <= {variable["name"] for variable in DASHBOARDS[links.DASHBOARD].body["templating"]["list"]}


def test_data_sources_are_those_that_the_dashboards_choose():
    chosen = {
        variable["current"]["value"]
        for dashboard in DASHBOARDS.values()
        for variable in dashboard.body["templating"]["list"]
        if variable["type"] == "datasource"
    }
    text = assets.path("deploy/grafana/provisioning/datasources/verl.yaml").read_text(encoding="utf-8")
    provisioned = yaml.safe_load(text)["datasources"]
    uids = {source["uid"] for source in provisioned}
    assert uids == chosen == {links.DATA_SOURCE, sources.BY_STEP, sources.PROMETHEUS}
    # A single $ would be taken for a variable of the environment.
    assert set(re.findall(r"(?<!\$)\$\{(\w+)", text)) == {
        "ELASTICSEARCH_URL",
        "ELASTICSEARCH_USERNAME",
        "ELASTICSEARCH_PASSWORD",
        "PROMETHEUS_URL",
        "VERL_SERVICE_URL",
    }
    assert "$${__value.raw:percentencode}" in text


def test_the_address_of_the_service_is_a_constant_that_no_link_can_change():
    for dashboard in grafana.dashboards("https://kit.example/verl"):
        (service,) = [v for v in dashboard.body["templating"]["list"] if v["name"] == points.SERVICE]
        assert service["query"] == "https://kit.example/verl"
        assert (service["type"], service["skipUrlSync"]) == ("constant", True)


def test_every_metric_of_the_agents_panels_is_one_that_an_agent_has(fluent_bit, tmp_path):
    asked = {
        name
        for panel in panels(DASHBOARDS["verl-pipeline"])
        for target in panel["targets"]
        for name in re.findall(r"fluentbit_\w+", target.get("expr", ""))
    }
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    too_long = "x" * 9_000_000  # what was cut is counted from the first such line on
    (run / "rank0.jsonl").write_text(f'{{"step": 1, "loss": 0.5}}\n{too_long}\n', encoding="utf-8")
    settings = fluentbit.settings_for(tmp_path / "runs", tmp_path / "state")
    with fluentbit.running(fluent_bit, tmp_path / "agent", settings) as agent:
        wait_for(lambda: asked <= _metrics(agent), timeout=60, what=f"all of {asked}")


def _metrics(agent):
    url = f"http://127.0.0.1:{agent.settings.agent.metrics_port}/api/v2/metrics/prometheus"
    with urllib.request.urlopen(url, timeout=5) as answer:
        return set(re.findall(r"^fluentbit_\w+", answer.read().decode(), re.MULTILINE))
