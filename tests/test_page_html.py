"""The page as HTML: nothing inline, no text of a log or a sample becomes markup, light."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.documents import line, record, sample
from tests.pages import Page
from verl_ingest.serve.page import render, static

TEMPLATES = sorted(render.TEMPLATES.glob("*.j2"))
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "'\"><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% include 'base.html.j2' %}",
    "<!--<script>",
    "]]>&lt;&amp;",
)
TURNED = "abc\u202ecod.exe\u2066"


@pytest.fixture(scope="module")
def hostile() -> str:
    return " ".join(HOSTILE)


@pytest.fixture
def hostile_run(write, hostile) -> str:
    """A run in which every text is hostile."""
    run = f"r'17 #a!b/中 {hostile}"
    name = f"metric {HOSTILE[1]}"
    write(
        record(
            run, at, step=at, rank=rank, stage="actor", pid=rank + 1, host=HOSTILE[2], metrics={name: 1.0 + at + rank}
        )
        for at in range(15)
        for rank in range(4)
    )
    error = {
        "error.type": "Error",
        "error.message": hostile,
        "error.stack_trace": f'File "x", line 1, in f\n{hostile}\nError',
    }
    write(
        [
            line(run, 14, f"{hostile} {TURNED}\0", step=14, level="warning", rank=1, **{"log.logger": HOSTILE[0]}),
            line(run, 14, hostile, step=14, level="error", rank=2, pid=3, **error),
            sample(
                run,
                14,
                14,
                0.5,
                input=hostile,
                output=f"{TURNED}{hostile}",
                output_length=9,
                uid=HOSTILE[0],
                split=HOSTILE[1],
            ),
        ]
    )
    return run


def test_no_text_of_a_run_becomes_markup(view_of, hostile_run, hostile):
    view = view_of(hostile_run, 14)
    html = render.step_html(view)
    page = Page(html)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"img", "iframe", "object", "style"})
    assert [
        name for _, attributes in page.elements for name in attributes if name.startswith("on") or name == "style"
    ] == []
    assert "alert(1)" not in "".join(attributes.get("href") or "" for _, attributes in page.elements)
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 3
    assert hostile in page.text
    assert "7 * 7" in page.text


def test_data_for_scripts_reads_back(view_of, hostile_run, hostile):
    page = Page(render.step_html(view_of(hostile_run, 14)))
    data = [json.loads(script) for script in page.scripts if script]
    assert len(data) == 2
    assert any(isinstance(each, list) for each in data)


def test_signs_that_hide_or_turn_text_are_shown(view_of, hostile_run):
    html = render.step_html(view_of(hostile_run, 14))
    assert "abc\\u202ecod.exe\\u2066" in html
    assert re.search("[\0-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", html) is None


@pytest.mark.parametrize("value", [*HOSTILE, "\u2028 \u2029 & 中", {"a": ["<", None, 1.5]}])
def test_embedded_json_can_end_no_script(value):
    text = str(render.embedded(value))
    assert json.loads(text) == value
    assert not set(text) & set("<>&\u2028\u2029")


def test_nothing_is_inline_in_any_template():
    assert TEMPLATES
    for template in TEMPLATES:
        text = template.read_text()
        assert re.search(r"\sstyle\s*=|<style|\son\w+\s*=|javascript:", text) is None, template.name
        for opening in re.findall(r"<script[^>]*>", text):
            assert 'src="{{ static(' in opening or 'type="application/json"' in opening, template.name
        assert re.search(r"\|\s*safe\b", text) is None, template.name


def test_every_file_is_used_and_no_other(view_of, demo):
    used = "".join(template.read_text() for template in TEMPLATES)
    assert {name for name in static.FILES if f"static('{name}')" in used} == set(static.FILES)
    page = Page(render.step_html(view_of(demo, 128), base="/verl"))
    addresses = [
        *page.attributes("src"),
        *(a["href"] for tag, a in page.elements if tag == "link"),
        *page.attributes("data-library"),
    ]
    local = [urlsplit(address) for address in addresses]
    assert all(address.netloc == "" and address.path.startswith("/verl/static/") and address.query for address in local)


def test_the_address_of_a_file_changes_with_it(tmp_path, monkeypatch):
    path = tmp_path / "page.css"
    path.write_text("a {}")
    monkeypatch.setitem(static.FILES, "page.css", path)
    static.address.cache_clear()
    first = static.address("page.css")
    path.write_text("b {}")
    static.address.cache_clear()
    assert static.address("page.css") != first
    static.address.cache_clear()


def test_the_charting_library_is_there():
    script = Path(static.FILES[static.CHARTS]).read_text()
    assert "customBars" in script and "eval(" not in script and "new Function" not in script


def test_own_files_are_small():
    own = sum(path.stat().st_size for name, path in static.FILES.items() if name != static.CHARTS)
    assert own < 60_000
    assert static.FILES[static.CHARTS].stat().st_size < 150_000


def test_a_page_is_light(view_of, demo_with_console):
    for number in (100, 199):
        assert len(render.step_html(view_of(demo_with_console, number)).encode()) < 100_000


def test_a_long_sample_is_cut_and_can_be_asked_for(view_of, write):
    run = "page-long"
    write([sample(run, 0, 1, 0.5, input="short", output="x" * 1_000_000, output_length=1_000_000)])
    html = render.step_html(view_of(run, 1))
    assert len(html) < 60_000
    page = Page(html)
    [whole] = [attributes for tag, attributes in page.elements if attributes.get("class") == "whole"][:1]
    assert re.fullmatch(r"/api/runs/page-long/steps/1/samples/[\w-]{20}", whole["href"])
    assert whole["data-part"] == "output"
    assert "Show all 1,000,000 characters" in page.text


def test_a_long_line_is_cut_in_its_middle(view_of, write):
    run = "page-long-line"
    write([record(run, 0, step=1, rank=0, pid=1, metrics={"kl_divergence": 0.01})])
    write([line(run, 0, "begin " + "x" * 100_000 + " end", step=1, level="info")])
    [shown] = view_of(run, 1).lines.lines
    assert shown.message.startswith("begin x") and shown.message.endswith("x end")
    assert "98,010 characters left out" in shown.message


def test_links_lead_where_they_say(view_of, demo):
    view = view_of(demo, 128, kibana="https://k/x", back="https://g/d/1", tracker="javascript:alert(1)")
    links = [attributes["href"] for tag, attributes in Page(render.step_html(view)).elements if tag == "a"]
    assert "/runs/ask-demo/steps/127?back=https%3A%2F%2Fg%2Fd%2F1" in links
    assert {
        "/runs/ask-demo",
        "/runs/ask-demo/steps/128/next-anomaly?back=https%3A%2F%2Fg%2Fd%2F1",
        "/api/runs/ask-demo/steps/128",
        "https://k/x",
        "https://g/d/1",
    } <= set(links)
    assert not any(link.startswith("javascript") for link in links)


def test_an_unknown_step_is_explained():
    html = render.unknown_step_html("Run 'a<b' has no step 9; the nearest is 8.", [("Step 8", "/runs/a/steps/8")])
    page = Page(html)
    assert "Run 'a<b' has no step 9" in page.text and "It has not been logged yet" in page.text
    assert "old daily indices may have been deleted" in page.text and "pinned" not in page.text
    assert "/runs/a/steps/8" in page.attributes("href")


def test_a_template_that_names_what_is_not_given_fails():
    with pytest.raises(Exception, match="'view' is undefined"):
        render.html("step.html.j2")
