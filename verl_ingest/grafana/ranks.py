"""Dashboard `Rank comparison`: which rank differs, which is slow, which is missing?"""

from verl_ingest.grafana import frames, panels, queries
from verl_ingest.grafana.board import Dashboard, Row, dashboard
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.variables import Variable
from verl_ingest.links import points

UID = "verl-ranks"
TITLE = "verl: rank comparison"
WORST = "8"
LATENCIES = ("rollout/latency_ms", "critic/forward_latency_ms", "actor/forward_latency_ms")
SLOW = 1.5  # times the median of the ranks
_RANK = (points.STEP, points.RANK_OF_FIELD, points.METRIC_OF_VARIABLE)


def build(variables: list[Variable]) -> Dashboard:
    """Return the dashboard."""
    rows = [
        Row([_spread(), _worst()]),
        Row([_map()], height=10),
        Row([_slowest(), _present()]),
        Row([_last_seen()], height=9),
        Row([_every_rank()], height=10, title="Every rank that is chosen", folded=True),
    ]
    about = "One metric rank by rank, slow ranks, ranks that no longer log. Click on a point to open its step."
    return dashboard(UID, TITLE, about, variables, rows)


def _spread() -> Panel:
    where = f"{queries.METRICS} AND {queries.WITH_CHOSEN}"
    target = queries.by_step(queries.percentiles(queries.CHOSEN, 5, 50, 95), where=where)
    names = {5: "5 %", 50: "median", 95: "95 %"}
    named = [frames.renamed_like(rf"^p{percent}\.0 .*$", name) for percent, name in names.items()]
    return panels.trend(
        "Median and 5-95 % of the ranks",
        "How far the ranks lie apart: a narrow band and one rank outside of it is that rank's own trouble.",
        (target, named),
        link=(points.STEP, points.METRIC_OF_VARIABLE),
        overrides=panels.band("95 %", "5 %"),
    )


def _worst() -> Panel:
    return panels.trend(
        "The 8 worst ranks",
        "Those of the highest mean in the time range, or the lowest: see Worst at the top.",
        frames.ranks_of_chosen(size=WORST, worst="${worst}"),
        link=_RANK,
    )


def _map() -> Panel:
    return panels.heat_map(
        "By step and rank", "The mean of each rank at each step.", frames.ranks_of_chosen(), link=_RANK
    )


def _every_rank() -> Panel:
    return panels.trend("By step, a line a rank", "The mean of each rank.", frames.ranks_of_chosen(), link=_RANK)


def _slowest() -> Panel:
    return panels.trend(
        "Slowest rank against the median",
        "How many times as long as the median rank the slowest one takes; all others wait for it.",
        frames.slowest_ranks(LATENCIES),
        limits={"high": SLOW},
    )


def _present() -> Panel:
    count = [{"id": "1", "type": "cardinality", "field": "rank"}]
    target = queries.by_step(count, queries.terms("stage"))
    return panels.trend(
        "Ranks that logged",
        "How many ranks logged each stage at each step: where a line dips, ranks are missing.",
        (target, frames.matrix("stage", queries.column(count, count[0]))),
        link=(points.STEP, points.STAGE_OF_FIELD),
    )


def _last_seen() -> Panel:
    numbers = [
        {"id": "1", "type": "count"},
        {"id": "2", "type": "max", "field": "step"},
        {"id": "3", "type": "max", "field": "@timestamp"},
    ]
    columns = {"Count": "records", "Max step": "step", "Max @timestamp": "last record"}
    return panels.table(
        "Last seen",
        "The last step of each rank in the time range; a rank that stays behind the others no longer logs.",
        (queries.table(numbers, queries.terms("rank")), [frames.renamed(columns)]),
        link=(points.STEP, points.RANK_OF_ROW),
        sort="step",
        overrides=[panels.override("last record", {"unit": "dateTimeAsIso"})],
    )
