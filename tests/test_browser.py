"""The pages as a reader has them: clicked, typed and read in a real browser, which must have no complaint.

Whatever a test does, `visit` fails it at its end for a dialog, an error of a script, a word in the console (so also for
what the policy of the pages forbids), and for any request to elsewhere but the links to Kibana and Grafana.
"""

import re
from html import escape
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests import risontext
from tests.browser import GRAFANA, KIBANA, TIMEOUT_MS
from tests.documents import line, record, sample
from tests.waiting import wait_for
from verl_ingest.links import page, points

expect.set_options(timeout=TIMEOUT_MS)

SCRIPT = "<script>alert(1)</script>"
NAMES = ["r'17 #a!b/中", SCRIPT, "..", "a/steps/5"]
DASHBOARD = f"{GRAFANA}/d/verl-run?orgId=1&from=1772380572000&to=1772384400000&var-rank=3"
LIGHT, DARK = "rgb(244, 245, 247)", "rgb(15, 18, 22)"


def filled(template: str, known: dict[str, str]) -> str:
    """Fill in the variables that are known as Grafana does: as JavaScript's encodeURI, or whole on request."""

    def fill(match: re.Match[str]) -> str:
        name, _, form = match[1].partition(":")
        if name not in known or form == "raw":
            return known.get(name, match[0])
        return quote(known[name], safe="" if form == "percentencode" else ";,/?:@&=+$!*'()#")

    return re.sub(r"\$\{([^}]*)\}", fill, template)


def step_of(window: Page) -> int:
    """Return the step of the page that is shown."""
    return int(window.locator(".steps b").inner_text().removeprefix("step "))


class TestFromAChart:
    """Data links of the dashboards' panels, filled in as Grafana does it, clicked."""

    OF_SERIES = points.drilldown(points.RANK_OF_SERIES, points.TIME, points.METRIC_OF_VARIABLE)
    OF_ROW = points.drilldown(points.STEP, points.RANK_OF_FIELD, points.metric("kl_divergence"))
    REDUCED = points.drilldown("step=${__data.fields.nothing.numeric}", points.RANK_OF_SERIES, points.TIME)

    @pytest.fixture
    def click(self, visit, service, demo):
        """Click a point of a chart with this link, and return the window."""

        def click_on(template: str, *, step: int = 128, decoded: bool = False) -> Page:
            known = {
                "service": service,
                "run_id": demo,
                "metric": "kl_divergence",
                "__series.name": "3",
                "__field.name": "3",
                "__value.time": "1772382373000",
                "__interval_ms": "10000",
                "__data.fields.step.numeric": str(step),
                "__url": DASHBOARD.removeprefix(GRAFANA),
            }
            link = filled(template, known)
            chart = f'<a href="{escape(unquote(link) if decoded else link)}">point</a>'
            window = visit()
            window.route(f"{GRAFANA}/**", lambda route: route.fulfill(body=chart, content_type="text/html"))
            window.goto(DASHBOARD)
            window.get_by_text("point").click()
            return window

        return click_on

    @pytest.mark.parametrize("template", [OF_SERIES, OF_ROW, REDUCED])
    @pytest.mark.parametrize("decoded", [False, True])  # some versions of Grafana decode whole links
    def test_a_point_leads_to_its_step_and_back(self, click, template, decoded):
        window = click(template, decoded=decoded)
        expect(window.locator("h1")).to_have_text("ask-demo")
        assert step_of(window) == 128
        expect(window.locator(".note")).to_contain_text("rank 3")
        expect(window.locator(".cause")).to_contain_text("rank 3 alone drives it")
        window.locator("a[rel=next]").click()
        window.get_by_text("← Dashboard").click()
        window.wait_for_url(DASHBOARD)

    def test_a_point_of_no_step_names_the_nearest(self, click):
        window = click(self.OF_ROW, step=777)
        expect(window.locator("h1")).to_have_text("Run 'ask-demo' has no step 777.")
        window.get_by_text("Step 240").click()
        assert step_of(window) == 240
        window.get_by_text("← Dashboard").click()
        window.wait_for_url(DASHBOARD)


class TestLinksOut:
    """The buttons to Kibana and Grafana, read as these read their addresses."""

    @pytest.fixture
    def follow(self, visit, demo):
        def follow_to(name: str) -> str:
            window = visit(page.step("", demo, 128, rank=3))
            with window.expect_popup() as opened:
                window.get_by_text(f"{name} ↗").click()
            opened.value.wait_for_load_state()
            return opened.value.url

        return follow_to

    def test_kibana_has_the_records_of_the_step(self, follow, demo):
        address, _, state = follow("Kibana").partition("#/?")
        assert address == f"{KIBANA}/app/discover"
        found = {name: risontext.decode(values[0]) for name, values in parse_qs(state).items()}
        assert found["_g"]["time"] == {"from": "2026-03-01T16:25:12.000Z", "to": "2026-03-01T16:27:18.850Z"}
        assert found["_a"]["dataSource"] == {"dataViewId": "verl", "type": "dataView"}
        assert found["_a"]["query"] == {"language": "kuery", "query": f'run_id : "{demo}" and step : 128'}
        assert found["_a"]["filters"][0]["query"] == {"match_phrase": {"rank": 3}}

    def test_grafana_has_the_dashboard_of_the_run(self, follow, demo):
        address, _, query = follow("Grafana").partition("?")
        assert address == f"{GRAFANA}/d/verl-run"
        found = {name: values[0] for name, values in parse_qs(query).items()}
        assert 1_772_380_000_000 < int(found["from"]) < 1_772_382_373_000 < int(found["to"])
        assert (found["var-run_id"], found["var-step"], found["var-rank"]) == (demo, "128", "3")


class TestKeys:
    def test_arrows_lead_to_the_steps_beside(self, visit, demo):
        window = visit(page.step("", demo, 100))
        window.keyboard.press("ArrowRight")
        window.wait_for_url(f"**{page.step('', demo, 101)}")
        window.keyboard.press("ArrowLeft")
        window.wait_for_url(f"**{page.step('', demo, 100)}")
        window.locator("a[rel=prev]").click()
        window.wait_for_url(f"**{page.step('', demo, 99)}")

    def test_p_and_n_lead_to_the_anomalies_beside(self, visit, write):
        name = "browser-humps"
        write(record(name, n, step=n, rank=0, metrics={"loss": 0.5 + n % 3 / 100}) for n in range(1, 60))
        write(line(name, n + 0.5, "bad", step=n, level="error") for n in (20, 40))
        window = visit(page.step("", name, 30, back=DASHBOARD))
        for key, step in (("n", 40), ("p", 20), ("n", 40)):
            window.keyboard.press(key)
            window.wait_for_url(f"**{page.step('', name, step)}*")
            assert window.locator(".back").get_attribute("href") == DASHBOARD
        window.keyboard.press("n")
        expect(window.locator("h1")).to_contain_text("after step 40 is abnormal")

    def test_keys_typed_into_a_field_stay_there(self, visit, demo_with_console):
        window = visit(page.step("", demo_with_console, 199))
        field = window.get_by_label("Only rank")
        field.fill("3")
        field.press("ArrowLeft")
        field.press("n")
        expect(field).to_be_focused()
        assert step_of(window) == 199


class TestLogLines:
    @pytest.fixture
    def window(self, visit, demo_with_console) -> Page:
        return visit(page.step("", demo_with_console, 199))

    def test_by_level_and_rank(self, window):
        shown = window.locator(".loglines > li:visible")
        everything = shown.count()
        window.get_by_label("errors", exact=True).check()
        expect(window.locator(".filter output")).to_have_text(f"3 of {everything} lines")
        expect(shown).to_have_count(3)
        window.get_by_label("Only rank").fill("5")
        expect(shown).to_have_count(1)
        expect(shown).to_contain_text("NCCL")
        window.get_by_role("button", name="rank 3").click()
        expect(shown).to_contain_text(["CUDA OOM", "CUDA out of memory"])

    def test_a_stack_trace_unfolds(self, window):
        frames = window.locator(".loglines pre", has_text="loss.backward()").first
        expect(frames).to_be_hidden()
        window.get_by_text("stack", exact=True).first.click()
        expect(frames).to_be_visible()


class TestSamples:
    LENGTH = 2_000_000

    @pytest.fixture
    def window(self, visit, write) -> Page:
        name = "browser-samples"
        write([record(name, 1, step=5, rank=0, metrics={"loss": 1.0})])
        hostile = f"</script>{SCRIPT}<img src=x onerror=alert(1)>\u202e{{{{ 7 * 7 }}}}"
        write([sample(name, 2, 5, 0.0, input=hostile, output="", output_length=0, uid=SCRIPT)])
        text = (hostile * self.LENGTH)[: self.LENGTH]
        write([sample(name, 3, 5, 0.5, input="Why?", output=text, output_length=self.LENGTH)])
        return visit(page.step("", name, 5))

    def test_a_click_on_the_first_screen_opens_the_sample(self, window):
        window.locator(".lowest a").first.click()
        expect(window.locator("#sample-1 pre").first).to_contain_text("</script><script>alert(1)</script><img src=x")
        expect(window.locator("#sample-1")).to_contain_text("(empty)")

    def test_megabytes_come_on_demand_and_leave_the_page_alive(self, window):
        assert len(window.content()) < 100_000
        window.locator("#sample-2 summary").click()
        window.locator("#sample-2").get_by_text("Show all 2,000,000 characters").click()
        block = window.locator("#sample-2 pre").nth(1)
        expect(block.locator(".piece")).to_have_count(self.LENGTH // 50_000)
        assert block.evaluate("block => block.textContent.length") == self.LENGTH
        assert block.locator("img, script").count() == 0
        window.locator("#sample-1 summary").click()
        expect(window.locator("#sample-1 pre").first).to_be_visible()


class TestNames:
    @pytest.fixture(autouse=True)
    def runs(self, write):
        write(record(name, 1, step=5, rank=0, metrics={"loss": 1.0}) for name in NAMES)

    def test_from_the_list_of_runs(self, visit):
        window = visit("/runs?limit=1000")
        for name in NAMES:
            with window.context.expect_page() as opened:
                window.get_by_role("link", name=name, exact=True).click(modifiers=["Control"])
            run = opened.value
            expect(run.locator("h1")).to_have_text(name)
            run.get_by_role("link", name="Newest step").click()
            expect(run.locator("h1")).to_have_text(name)
            assert step_of(run) == 5

    def test_from_a_chart(self, visit):
        window = visit()
        for name in NAMES:
            window.goto(f"/drilldown?step=5&metric={quote(SCRIPT)}&run_id={quote(name, safe='')}")
            expect(window.locator("h1")).to_have_text(name)
            expect(window.locator(".note")).to_have_text(f"You came here for {SCRIPT}.")
            with window.expect_popup() as opened:
                window.get_by_text("Kibana ↗").click()
            state = parse_qs(urlsplit(opened.value.url).fragment.partition("?")[2])
            assert risontext.decode(state["_a"][0])["query"]["query"] == f'run_id : "{name}" and step : 5'


class TestLooks:
    @pytest.mark.parametrize(("scheme", "ground"), [("light", LIGHT), ("dark", DARK)])
    def test_light_and_dark(self, visit, demo_with_console, scheme, ground):
        window = visit(page.step("", demo_with_console, 199), color_scheme=scheme)
        assert window.evaluate("getComputedStyle(document.documentElement).backgroundColor") == ground

    def test_a_phone_scrolls_one_way_only(self, visit, demo_with_console):
        window = visit(viewport={"width": 360, "height": 740})
        run = page.run("", demo_with_console)
        unknown = page.drilldown("", demo_with_console, 999)
        for address in ("/runs", run, f"{run}/steps/199", unknown, page.compare("", demo_with_console)):
            window.goto(address)
            window.evaluate("document.querySelectorAll('details').forEach((details) => (details.open = true))")
            assert window.evaluate("document.documentElement.scrollWidth") == 360, address

    def test_a_phone_has_the_way_back_and_more_than_the_names_of_runs(self, visit, demo, write):
        write([record("phone-" + "x" * 80, 5, step=5, metrics={"loss": 1.0})])
        window = visit("/runs", viewport={"width": 360, "height": 740})
        assert window.get_by_role("columnheader", name="state").bounding_box()["x"] < 300
        last = window.get_by_role("columnheader").last
        last.scroll_into_view_if_needed()
        assert last.bounding_box()["x"] + last.bounding_box()["width"] <= 360
        for address in (page.run("", demo), page.step("", demo, 128)):
            window.goto(address)
            expect(window.get_by_role("link", name="verl runs")).to_be_visible()

    def test_the_first_screen_needs_no_script(self, visit, demo_with_console):
        window = visit(page.step("", demo_with_console, 199), java_script_enabled=False)
        for words in ("Critical", "Do first", "First error", "Golden six", "train-node-01", "Stages", "Kibana ↗"):
            expect(window.get_by_text(words).first).to_be_visible()
        expect(window.locator("#copy, .filter")).to_have_count(2)
        expect(window.locator("#copy:visible, .filter:visible")).to_have_count(0)
        window.locator("a[rel=next]").click()
        assert step_of(window) == 200

    def test_charts_come_when_they_are_near(self, visit, demo):
        window = visit(page.step("", demo, 128))
        window.locator("#charts").scroll_into_view_if_needed()
        chart = window.locator("figure", has_text="kl_divergence")
        expect(chart.locator("output")).to_contain_text("step 128: 0.0204")
        plot = chart.locator(".plot")

        def shows_another_step() -> bool:
            """Point at the plot's end, anew each time: what loads above it moves the plot away from under the mouse."""
            plot.hover(position={"x": plot.bounding_box()["width"] * 0.9, "y": 40})
            return "step 128:" not in chart.locator("output").inner_text()

        wait_for(shows_another_step, timeout=60, what="step under the mouse")


def test_what_takes_long_comes_later(visit, demo):
    window = visit(page.step("", demo, 163, back=DASHBOARD))
    expect(window.locator("#began p")).to_have_text("It began at step 160.")
    window.get_by_text("Onset: step 160").click()
    window.wait_for_url(f"**{page.step('', demo, 160, back=DASHBOARD)}")


def test_copy_as_markdown(visit, service, demo):
    window = visit(page.step("", demo, 163), permissions=["clipboard-read", "clipboard-write"])
    expect(window.locator("#began p")).to_have_text("It began at step 160.")
    window.get_by_text("Copy as Markdown").click()
    expect(window.locator("#copy")).to_have_text("Copied")
    copied = window.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"**Abnormal: {demo}, step 163")
    assert f"<{service}{page.step('', demo, 163)}>" in copied and "It began at step 160." in copied


def test_an_unknown_step_names_the_nearest(visit, demo, complaints):
    window = visit(page.step("", demo, 999))
    assert complaints.pop().endswith("status of 404 (Not Found)")
    expect(window.locator("h1")).to_have_text(f"Run '{demo}' has no step 999; the nearest is 240.")
    window.get_by_text("Step 240").click()
    assert step_of(window) == 240


def test_runs_over_each_other(visit, demo, demo_with_console):
    window = visit(page.run("", demo))
    window.get_by_role("link", name="Compare").click()
    window.get_by_label("and").fill(demo_with_console)
    window.get_by_label("Metric").fill("kl_ref")
    window.get_by_role("button", name="Compare").click()
    expect(window.locator("table a")).to_have_text([demo, demo_with_console])


def test_what_a_page_must_not_do_would_be_seen(visit, complaints):
    window = visit("/runs")
    with window.expect_console_message():
        window.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'alert(1)'}))")
    with window.expect_event("dialog"):
        window.evaluate("setTimeout(() => alert('boo'))")
    with window.expect_event("pageerror"):
        window.evaluate("setTimeout(() => nothing.there)")
    window.goto("https://evil.example/")
    for words in ("Content Security Policy", "dialog: boo", "nothing is not defined", "request: https://evil.example/"):
        assert any(words in said for said in complaints), words
    complaints.clear()
