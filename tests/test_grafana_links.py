"""The links of panels, as Grafana's own code fills them in (tests/grafana_links.py), opened on the running service."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.grafana_links import ADDRESS, GOLDEN, HOSTILE, RUN, VERSIONS, made_of, panels
from tests.grafana_queries import BUCKET_MS
from verl_ingest import grafana
from verl_ingest.serve import drilldown

BACK = ADDRESS.removeprefix("http://grafana.example")


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def _links(found):
    return [(column["column"], link["row"], link["url"]) for column in found["columns"] for link in column["links"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_grafana_was_asked_about_the_panels_as_they_are(golden, version):
    asked = {name: found["made_of"] for name, found in golden[version]["panels"].items()}
    assert asked == {name: made_of(panel) for name, panel in panels()}, "run `make grafana`"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [name for name, _ in panels()])
def test_each_panel_leads_to_the_step_of_the_point(golden, elasticsearch, demo_with_console, get, version, name):
    assert demo_with_console == RUN
    found = _links(golden[version]["panels"][name])
    assert found, "no point of this panel has a link"
    for column, row, url in found:
        assert url.startswith(f"{grafana.SERVICE}/drilldown?")
        answer = get(url.removeprefix(grafana.SERVICE))
        assert answer.status == 302, (column, url)
        place = urlsplit(answer.location)
        (step,) = re.fullmatch(rf"/verl/runs/{RUN}/steps/(\d+)", place.path).groups()
        assert int(step) in _expected(elasticsearch, row), (column, url)
        asked, told = parse_qs(urlsplit(url).query), parse_qs(place.query)
        assert told["back"] == [f"https://g.example/g{BACK}"]
        assert [told.get(part) for part in ("rank", "metric")] == [asked.get(part) for part in ("rank", "metric")]


@pytest.mark.parametrize("version", VERSIONS)
def test_red_points_are_the_planted_fault_alone(golden, version):
    found = golden[version]["panels"]["verl-run: Critic loss"]["columns"]
    (beyond,) = [column for column in found if column["column"] == "beyond 3 sigma"]
    assert beyond["values"] == 1
    assert [link["row"] for link in beyond["links"]] == [{"step": 88}]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_heat_map_names_every_rank(golden, version):
    found = [column["column"] for column in golden[version]["panels"]["verl-run: KL by step and rank"]["columns"]]
    assert found == ["step", *(f"rank {rank}" for rank in range(8))]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_link_bears_every_name_of_a_run(golden, version):
    for url in golden[version]["hostile"]:
        wanted = drilldown.read(urlsplit(url).query)
        assert (wanted.run_id, wanted.back) == (HOSTILE, BACK)
        assert wanted.step in (1, 240)


def test_back_is_last_and_complete():
    for _, panel in panels():
        for url in _templates(panel):
            assert url.endswith("&back=${__url:percentencode}")
            assert "run_id=${run_id:percentencode}" in url


def _templates(panel):
    config = panel["fieldConfig"]
    overridden = [p["value"] for o in config["overrides"] for p in o["properties"] if p["id"] == "links"]
    return [link["url"] for links in [config["defaults"].get("links", []), *overridden] for link in links]


def _expected(client, row):
    """Return the steps that a row may mean: its own, else those of its time."""
    if "step" in row:
        return {row["step"]}
    run, time = {"term": {"run_id": RUN}}, row["Time"]
    for span in ({"gte": time, "lt": time + BUCKET_MS}, {"lt": time}):
        window = {"range": {"@timestamp": {**span, "format": "epoch_millis"}}}
        query = {"bool": {"filter": [run, window, {"exists": {"field": "step"}}]}}
        newest = [{"@timestamp": "desc"}]
        size = 1 if "gte" not in span else 1_000
        hits = client.search(index="verl-*", query=query, sort=newest, size=size, source=["step"])["hits"]["hits"]
        if hits:
            return {hit["_source"]["step"] for hit in hits}
    return set()
