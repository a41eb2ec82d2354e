"""Each query of each panel, sent to Elasticsearch with the demo's run: does the answer have what the panel needs?"""

import json
import statistics

import pytest

from tests.documents import START, line, record
from tests.grafana_queries import ask, column, fill_in, panel_of, panels_of, search
from verl_ingest import grafana
from verl_ingest.demo import logs
from verl_ingest.links import grafana as links

OVERVIEW, RANKS, SYSTEM, PIPELINE = links.DASHBOARD, "verl-ranks", "verl-system", "verl-pipeline"
BEGIN = logs.START * 1_000
CRASH = BEGIN + 2_600_000  # after step 205 of the first attempt
WHOLE = (BEGIN - 60_000, BEGIN + 4_000_000)
LAUNCH = 1_772_383_605_000  # 2026-03-01T16:46:45Z, where the demo's run is resumed
ELASTIC = [
    pytest.param(uid, panel["title"], id=f"{uid}: {panel['title']}")
    for uid in (OVERVIEW, RANKS, SYSTEM, PIPELINE)
    for panel in panels_of(uid)
    if panel["datasource"]["type"] == "elasticsearch"
]
# The demo's run has nothing for these; they have tests of their own.
EMPTY_IN_DEMO = {"Anomalies", "Warnings and errors", "Stage durations", "Lines that were not understood"}


@pytest.fixture
def table_of(elasticsearch, demo):
    """Return the only table that a panel's query has as answer."""

    def ask_one(uid, title, *, ref="A", span=WHOLE, **values):
        frames = ask(elasticsearch, panel_of(uid, title), span, **{"run_id": demo, **values})
        (found,) = [frame for frame in frames if frame["refId"] == ref]
        return found

    return ask_one


@pytest.mark.parametrize(("uid", "title"), ELASTIC)
def test_every_query_is_understood_and_has_points(elasticsearch, demo_with_console, uid, title):
    frames = ask(elasticsearch, panel_of(uid, title), WHOLE, run_id=demo_with_console)
    points = sum(len(field["values"]) for frame in frames for field in frame["fields"])
    assert points or title in EMPTY_IN_DEMO


def test_reward_has_its_mean_and_band_and_kl_beside_it(table_of):
    found = table_of(OVERVIEW, "Reward and KL")
    upper = table_of(OVERVIEW, "Reward and KL", ref="B")
    lower = table_of(OVERVIEW, "Reward and KL", ref="C")
    steps = column(found, "step")
    assert steps == list(range(1, 241)) == column(upper, "step")
    means = column(found, "Average metrics.reward_mean")
    bounds = list(zip(column(lower, "Extended Stats"), means, column(upper, "Extended Stats"), strict=True))
    assert all(low < mean < high for low, mean, high in bounds)
    assert 0.005 < statistics.mean(high - mean for _, mean, high in bounds) < 0.02
    kl = dict(zip(steps, column(found, "Average metrics.kl_divergence"), strict=True))
    assert kl[128] > 1.3 * kl[127]


def test_the_planted_losses_are_beyond_3_sigma(table_of):
    found = table_of(OVERVIEW, "Critic loss")
    losses = dict(zip(column(found, "step"), column(found, "Average metrics.critic_loss"), strict=True))
    before = [losses[step] for step in range(39, 89)]
    assert losses[88] > statistics.mean(before) + 3 * statistics.pstdev(before)


def test_the_heat_map_has_every_rank_and_the_bright_cell(table_of):
    found = table_of(OVERVIEW, "KL by step and rank")
    cells = dict(
        zip(
            zip(column(found, "rank"), column(found, "step"), strict=True),
            column(found, "Average metrics.kl_divergence"),
            strict=True,
        )
    )
    assert {rank for rank, _ in cells} == set("01234567")
    at_128 = {rank: value for (rank, step), value in cells.items() if step == 128}
    assert max(at_128, key=at_128.get) == "3"
    assert at_128["3"] > 3 * statistics.median(at_128.values())


def test_the_newest_launch_alone(table_of):
    found = table_of(OVERVIEW, "Entropy", attempt=LAUNCH)
    assert column(found, "step") == list(range(200, 241))


def test_the_choice_of_a_launch_finds_it(elasticsearch, demo):
    (variable,) = [v for v in _variables(OVERVIEW) if v["name"] == "attempt"]
    found = _choices(elasticsearch, variable, run_id=demo)
    assert [bucket["key"] for bucket in found] == [LAUNCH]


def test_the_choices_of_run_and_rank(elasticsearch, demo):
    by_name = {variable["name"]: variable for variable in _variables(OVERVIEW)}
    assert demo in [bucket["key"] for bucket in _choices(elasticsearch, by_name["run_id"])]
    assert [bucket["key"] for bucket in _choices(elasticsearch, by_name["rank"], run_id=demo)] == list(range(8))


def test_ranks_are_chosen_by_variable_and_by_the_worst_mean(table_of):
    chosen = table_of(RANKS, "By step and rank", rank=["3", "5"])
    assert set(column(chosen, "rank")) == {"3", "5"}
    worst = table_of(RANKS, "The 8 worst ranks", metric="actor/forward_latency_ms")
    assert column(worst, "rank")[0] == "6"  # the straggler
    lowest = table_of(RANKS, "The 8 worst ranks", metric="actor/forward_latency_ms", worst="asc")
    assert column(lowest, "rank")[-1] == "6"


def test_the_spread_of_the_ranks(table_of):
    found = table_of(RANKS, "Median and 5-95 % of the ranks", metric="kl_divergence")
    at = column(found, "step").index(128)
    low, median, high = (column(found, f"p{p}.0 metrics.kl_divergence")[at] for p in (5, 50, 95))
    assert low <= median < 0.03 < high


def test_the_straggler_takes_several_times_the_median(table_of):
    found = table_of(RANKS, "Slowest rank against the median", ref="C")
    field = "metrics.actor/forward_latency_ms"
    ratios = {
        step: slowest / median
        for step, slowest, median in zip(
            *(column(found, name) for name in ("step", f"p100.0 {field}", f"p50.0 {field}")), strict=True
        )
    }
    assert {step for step, ratio in ratios.items() if ratio > 1.5} == set(range(170, 181))


def test_a_missing_rank_shows_in_the_count_and_in_when_it_was_last_seen(table_of):
    until_crash = (BEGIN, CRASH)
    found = table_of(RANKS, "Ranks that logged", span=until_crash)
    counts = {
        (stage, step): count
        for stage, step, count in zip(*(column(found, n) for n in ("stage", "step", "Unique Count")), strict=True)
    }
    assert counts["actor", 199] == 8
    assert counts["actor", 200] == 7
    seen = table_of(RANKS, "Last seen", span=until_crash)
    last = dict(zip(column(seen, "rank"), column(seen, "Max step"), strict=True))
    assert last == {rank: 199 if rank == 7 else 205 for rank in range(8)}


def test_the_system_layer_shows_the_bottleneck(elasticsearch, demo):
    frames = ask(elasticsearch, panel_of(SYSTEM, "CPU and GPU against throughput"), WHOLE, run_id=demo)
    by_name = {frame["name"]: frame for frame in frames}
    assert set(by_name) == {"system/cpu_load_avg", "gpu/utilization_pct", "throughput_tokens_per_sec"}
    assert min(column(by_name["gpu/utilization_pct"], "Value")) < 35
    assert min(column(by_name["throughput_tokens_per_sec"], "Value")) < 2_000
    hosts = ask(elasticsearch, panel_of(SYSTEM, "Disk wait by host"), WHOLE, run_id=demo)
    assert {frame["name"] for frame in hosts} == {"train-node-01", "train-node-02"}
    ranks = ask(elasticsearch, panel_of(SYSTEM, "GPU memory by rank"), WHOLE, run_id=demo, rank=["4"])
    assert [frame["name"] for frame in ranks] == ["4"]


def test_flagged_records_by_flag(elasticsearch, demo):
    frames = ask(elasticsearch, panel_of(PIPELINE, "Flagged records"), WHOLE, run_id=demo)
    assert [frame["name"] for frame in frames] == ["nan:reward_mean"]


def test_anomalies_and_lines_with_and_without_rank_and_stage(elasticsearch, write):
    run, span = "grafana r'17 #a!b/中", (START, START + 60_000)
    anomaly = {"anomaly.rule": "kl_high", "anomaly.severity": "critical", "anomaly.message": "KL is high.", "step": 7}
    write(
        [
            record(run, 1, kind="anomaly", rank=3, **anomaly),
            line(run, 2, "all is well", level="info", step=7, rank=3, stage="actor"),
            line(run, 3, "NaN!", level="warning", step=7, rank=3, stage="actor"),
            line(run, 4, "out of memory", level="error"),
            line("another", 4, "of another run", level="error"),
            record(run, 5, kind="unparsed", message="???", flags=["unparsed"]),
        ]
    )

    def of(uid, title, name, **values):
        (frame,) = ask(elasticsearch, panel_of(uid, title), span, run_id=run, **values)
        return column(frame, name)

    assert of(OVERVIEW, "Anomalies", "anomaly.message") == ["KL is high."]
    assert of(OVERVIEW, "Warnings and errors", "message") == ["out of memory", "NaN!"]
    assert of(OVERVIEW, "Warnings and errors", "message", rank=["3"]) == ["NaN!"]
    assert of(OVERVIEW, "Warnings and errors", "message", stage=["actor", "critic"]) == ["NaN!"]
    assert of(OVERVIEW, "Lines of step $step", "message", step="7") == ["NaN!", "all is well"]
    assert of(PIPELINE, "Lines that were not understood", "message") == ["???"]


def test_verls_own_names_count_where_ranks_log_none(elasticsearch, write):
    run, span = "grafana-driver", (START, START + 60_000)
    numbers = {"critic/score/mean": 0.5, "actor/kl_loss": 0.01, "timing_s/gen": 12.5, "perf/throughput": 900.0}
    write([record(run, 1, step=1, stage="trainer", metrics=numbers)])
    (frame,) = ask(elasticsearch, panel_of(OVERVIEW, "Reward and KL"), span, run_id=run)
    assert column(frame, "Average metrics.critic/score/mean") == [0.5]
    assert column(frame, "Average metrics.actor/kl_loss") == [0.01]
    (frame,) = ask(elasticsearch, panel_of(OVERVIEW, "Stage durations"), span, run_id=run)
    assert column(frame, "Average metrics.timing_s/gen") == [12.5]


def test_terms_ask_for_more_ranks_than_any_run_has():
    for uid in (OVERVIEW, RANKS, SYSTEM, PIPELINE):
        for panel in panels_of(uid):
            for target in panel["targets"]:
                for bucket in target.get("bucketAggs", ()):
                    if bucket["type"] == "terms" and panel["title"] != "The 8 worst ranks":
                        assert bucket["settings"]["size"] == "10000"


def _variables(uid):
    (body,) = [dashboard.body for dashboard in grafana.dashboards() if dashboard.uid == uid]
    return body["templating"]["list"]


def _choices(client, variable, **values):
    find = json.loads(variable["query"])
    target = {"query": find["query"], "bucketAggs": [], "metrics": [{"settings": {"size": "1"}}]}
    query = search(fill_in(target, values), WHOLE)["query"]
    order = {"doc_count": "_count", "key": "_key"}[find["orderBy"]]
    terms = {"field": find["field"], "size": find["size"], "order": {order: find["order"]}}
    answer = client.search(index="verl-*", size=0, query=query, aggs={"found": {"terms": terms}})
    return answer["aggregations"]["found"]["buckets"]
