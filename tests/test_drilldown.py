from urllib.parse import quote

import pytest

from tests.documents import START, record
from verl_ingest.errors import InputError
from verl_ingest.links import page
from verl_ingest.serve.drilldown import Wanted, read

HOSTILE = [
    "r'17 #a!b/中",
    ".",
    "..",
    "../../etc",
    "a/steps/5",
    "a/",
    "/a",
    "%2F",
    "a%b",
    "~2F",
    'q" OR run_id:*',
    "<b>&",
]
AT_128 = 1_772_382_373_000  # 2026-03-01T16:26:13Z, in step 128 of the demo


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("run_id=a&step=5", Wanted("a", 5)),
        ("run=a&step=5", Wanted("a", 5)),
        ("var-run_id=a&step=5", Wanted("a", 5)),
        ("var-run_id=a&run_id=b", Wanted("b")),
        ("run_id=&var-run_id=b", Wanted("b")),
        ("run_id=${run_id}&run=b", Wanted("b")),
        ("step_key=a%7Cb%7C17", Wanted("a|b", 17)),
        ("step_key=a%7C17&step=3", Wanted("a", 3)),
        ("run_id=gsm8k%2Frun%201%26x+y", Wanted("gsm8k/run 1&x y")),
        ("run_id=a&t=1764547200123&bucket_ms=30000", Wanted("a", time=1_764_547_200_123, bucket=30_000)),
        ("run_id=a&time=1764547200123.0", Wanted("a", time=1_764_547_200_123)),
        ("run_id=a&time=2025-12-01T00:00:00.123Z", Wanted("a", time=1_764_547_200_123)),
        ("run_id=a&t=${__value.time}&time=5", Wanted("a", time=5)),
        ("run_id=a&t=NaN&step=$%7B__data.fields.step.numeric%7D", Wanted("a")),
        ("run_id=a&step=%24%257B__data.fields.step%257D", Wanted("a")),
        ("run_id=a&step=1.25+K&t=5", Wanted("a", time=5)),
        ("run_id=a&step=-1", Wanted("a")),
        ("run_id=a&t=99999999999999999999", Wanted("a")),
        ("run_id=a&t=9999-01-01", Wanted("a")),
        ("run_id=a&t=yesterday", Wanted("a")),
        ("run_id=a&bucket_ms=999999999999", Wanted("a", bucket=86_400_000)),
        (
            "run_id=a&rank=3&stage=actor&metric=actor/pg_loss",
            Wanted("a", rank=3, stage="actor", metric="actor/pg_loss"),
        ),
        ("run_id=a&rank=3%203", Wanted("a")),
        ("run_id=a&rank=-3", Wanted("a")),
        ("run_id=a&rank=4294967296", Wanted("a")),
        ("run_id=a&rank=%D9%A3", Wanted("a")),
        ("run_id=a&to=kibana", Wanted("a", to="kibana")),
        ("run_id=a&to=https://evil.example", Wanted("a")),
        ("run_id=a&back=%2Fd%2Fx%3Fa%3D1%26b%3D2", Wanted("a", back="/d/x?a=1&b=2")),
        ("run_id=a&back=/d/x?a=1&b=2&step=9", Wanted("a", back="/d/x?a=1&b=2&step=9")),
        ("run_id=a&back=/d/x?var-run_id=a%20b", Wanted("a", back="/d/x?var-run_id=a%20b")),
        ("back=https%3A%2F%2Fg.example%2Fg%2Fd%2Fx&run_id=a", Wanted(back="https://g.example/g/d/x&run_id=a")),
        ("run_id=a&back=", Wanted("a")),
        ("run_id=a&back=${__url}", Wanted("a")),
        ("run_id=a&callback=x", Wanted("a")),
        ("", Wanted()),
        ("run_id=%ff", Wanted("\ufffd")),
    ],
)
def test_what_a_link_asks_for(query, wanted):
    assert read(query) == wanted


def test_a_star_in_the_name_of_a_metric_is_no_label():
    assert read("metric=loss&rank=1").labels == {"metric": "loss", "rank": 1}
    assert read("metric=*&rank=1").labels == {"rank": 1}


@pytest.mark.parametrize("query", ["step=99999999999999999999", "&".join(f"p{n}=1" for n in range(65))])
def test_a_link_that_cannot_be_read_is_refused(query):
    with pytest.raises(InputError):
        read(query)


@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("step=128", 128),
        (f"t={AT_128}", 128),
        (f"t={AT_128}&bucket_ms=1000", 128),
        (f"t={AT_128 - 4_000}", 127),  # of step 127, which took 12 s
        (f"t={AT_128 - 4_000}&bucket_ms=10000", 128),  # most of what is in the bucket
        (f"t={AT_128}&rank=3&metric=kl_divergence", 127),  # KL of step 128 came later
        (f"t={AT_128}&metric=no_such_metric", 128),
        (f"t={AT_128}&rank=77", 128),
    ],
)
def test_a_step_or_a_time_leads_to_its_step(get, demo, query, step):
    answer = get(f"/drilldown?run_id={demo}&{query}")
    assert answer.status == 302
    assert answer.location.split("?")[0] == f"/verl/runs/{demo}/steps/{step}"


def test_rank_metric_and_the_way_back_come_along(get, demo):
    location = get(f"/drilldown?run_id={demo}&step=128&rank=3&metric=actor/loss&back=/d/x?a=1&b=2").location
    back = "https%3A%2F%2Fg.example%2Fg%2Fd%2Fx%3Fa%3D1%26b%3D2"
    assert location == f"/verl/runs/{demo}/steps/128?rank=3&metric=actor%2Floss&back={back}"
    assert 'href="https://g.example/g/d/x?a=1&amp;b=2"' in get(location).text


@pytest.mark.parametrize(
    ("query", "sentence", "nearest"),
    [
        ("step=777", "has no step 777.", [240]),
        (f"t={AT_128 - 86_400_000}", "2026-02-28 16:26:13 UTC is before the first step of run", [1]),
        (f"t={AT_128 + 86_400_000}&bucket_ms=60000", "2026-03-02 16:26:13 UTC is after the last step of run", [240]),
    ],
)
def test_without_an_exact_hit_there_are_the_nearest_steps_and_a_sentence(get, demo, query, sentence, nearest):
    answer = get(f"/drilldown?run_id={demo}&{query}")
    assert answer.status == 200
    assert sentence in answer.text.replace("&#39;", "'")
    for number in nearest:
        assert f'href="/verl/runs/{demo}/steps/{number}"' in answer.text
    found = get(f"/api/drilldown?run_id={demo}&{query}").json()
    assert (found["step"], found["nearest"]) == (None, nearest)


def test_a_time_between_two_steps_or_right_after_the_last_is_that_of_the_step_before(get, write):
    write([record("gaps", at, step=step, metrics={"loss": 1.0}) for at, step in ((0, 1), (600, 2), (1_200, 3))])
    for at_s, step in ((0, 1), (500, 1), (601, 2), (1_230, 3), (2_300, 3)):
        assert get(f"/drilldown?run_id=gaps&t={START + at_s * 1_000}").location.endswith(f"/steps/{step}")
    assert "after the last step" in get(f"/drilldown?run_id=gaps&t={START + 2_500_000}").text


def test_without_a_step_or_a_time_a_link_leads_to_the_run(get, demo):
    assert get(f"/drilldown?run_id={demo}&t=NaN&step=").location == f"/verl/runs/{demo}"


def test_without_a_run_or_of_an_unknown_run_it_says_so(get, demo):
    assert (get("/drilldown?step=5").status, get("/drilldown").status) == (400, 400)
    answer = get("/drilldown?run_id=ask-dem0&step=5")
    assert answer.status == 404
    assert f'href="/verl/runs/{demo}"' in answer.text


@pytest.mark.parametrize(
    ("to", "start"),
    [
        ("kibana", "https://kb.example/app/discover#/?_tab="),
        ("grafana", "https://g.example/g/d/verl-run?from=1772380572000&"),
        ("explore", "https://g.example/g/explore?"),
    ],
)
def test_it_leads_on_to_kibana_and_grafana(get, demo, to, start):
    answer = get(f"/drilldown?run_id={demo}&t={AT_128}&to={to}&rank=3")
    assert answer.status == 302 and answer.location.startswith(start)
    assert demo in answer.location


@pytest.mark.parametrize("name", HOSTILE)
def test_every_name_leads_to_its_page(get, write, name):
    write([record(name, 1, step=5, rank=0, metrics={"loss": 1.0})])
    answer = get(f"/drilldown?step=5&run_id={quote(name, safe='')}")
    assert answer.location == page.step("/verl", name, 5)
    assert get(answer.location).status == 200
    assert get(page.step("/api", name, 5)).json()["run_id"] == name
    assert get(page.run("", name)).status == 200
    to = get(f"/drilldown?step=5&to=kibana&run_id={quote(name, safe='')}").location
    assert to.startswith("https://kb.example/app/discover#/?")
