"""Dashboard `Run overview`: is this run well, and since which step not?"""

from verl_ingest.catalog import metrics
from verl_ingest.grafana import frames, panels, queries
from verl_ingest.grafana.board import Dashboard, Row, dashboard
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.variables import Variable
from verl_ingest.links import grafana, points

TITLE = "verl: run overview"
BAND = ("mean + std", "mean - std")
STAGE_TIMES = ("gen_time", "reward_time", "old_log_prob_time", "ref_time", "values_time", "adv_time")
UPDATE_TIMES = ("update_critic_time", "update_actor_time", "update_weights_time", "save_checkpoint_time")
STAGE_LATENCIES = ("rollout_latency", "critic_forward_latency", "actor_forward_latency", "actor_reduce_grad")


def build(variables: list[Variable]) -> Dashboard:
    """Return the dashboard."""
    rows = [
        Row([_reward_and_kl(), panels.heat_map("KL by step and rank", _KL_MAP, frames.ranks_of("kl_ref"), **_OF_RANK)]),
        Row([_one("entropy"), _one("clip_fraction"), _one("advantage_mean")], height=7),
        Row([_loss("actor_loss", "Actor loss"), _loss("critic_loss", "Critic loss")]),
        Row([_throughput(), _stage_times(), _latencies()]),
        Row([cpu_against_throughput(), _anomalies()]),
        Row([_troubles()], height=9, title="Log lines"),
        Row([_lines_of_step()], height=9),
    ]
    about = "The golden six, losses, stages and resources of one run. Click on a point to open its step."
    return dashboard(grafana.DASHBOARD, TITLE, about, variables, rows)


_OF_RANK = {"unit": "nats", "link": (points.STEP, points.RANK_OF_FIELD, points.metric("kl_ref"))}
_KL_MAP = "Mean KL of each rank at each step; one bright cell is one rank that leaves the others."


def _reward_and_kl() -> Panel:
    target, transformations = frames.means("reward_mean", "kl_ref")
    spelling = "metrics.reward_mean"  # the one that ranks log; a driver's mean has no spread over ranks
    where = f"{queries.METRICS} AND {queries.with_any([spelling])}"
    targets = [target]
    for ref, name, end in zip("BC", BAND, ("upper", "lower"), strict=True):
        targets.append(queries.by_step(queries.deviation(spelling, end), where=where, ref=ref))
        transformations.append(frames.renamed({"Extended Stats": name}, ref=ref))
    return panels.trend(
        "Reward and KL",
        "Mean reward over the ranks, one standard deviation of them to each side, and mean KL on the right axis.",
        (targets, [*transformations, frames.joined()]),
        overrides=[*panels.band(*BAND), panels.right_axis("kl_ref", "nats")],
    )


def _one(name: str) -> Panel:
    """Return the chart of one of the golden six, with the limits at which the catalogue alarms."""
    metric = metrics.load().find(name)
    limits = {}
    for alarm in metric.alarms:
        if alarm.times is None and alarm.swing is None:
            limits |= {"high": alarm.above} if alarm.below is None else {"low": alarm.below}
    return panels.trend(
        name.replace("_", " ").capitalize(),
        f"{metric.short} The mean over the ranks; lines are the catalogue's alarms, made for a 7B model.",
        frames.means(name),
        unit=metric.unit,
        limits=limits,
    )


def _loss(name: str, title: str) -> Panel:
    return panels.trend(
        title,
        f"Mean over the ranks with the band of 3 sigma of {frames.WINDOW} steps; what is beyond is red.",
        frames.beyond_three_sigma(name),
        link=(points.STEP, points.metric(name)),
        overrides=[*panels.band("upper", "lower"), panels.red_points(frames.BEYOND)],
    )


def _throughput() -> Panel:
    return panels.trend(
        "Throughput",
        "Tokens a second of rollout, mean over the ranks; on the right what verl's trainer computes for the whole "
        "step, a second and GPU.",
        frames.means("rollout_throughput", "step_throughput"),
        unit="tokens/s",
        overrides=[panels.right_axis("step_throughput", "tokens/s")],
    )


def _stage_times() -> Panel:
    return panels.trend(
        "Stage durations",
        "What a step's time goes into, as verl's trainer measures it (timing_s/...).",
        frames.means(*STAGE_TIMES, *UPDATE_TIMES),
        unit="s",
    )


def _latencies() -> Panel:
    return panels.trend(
        "Stage latencies of the ranks",
        "What ranks measure themselves: one rollout, one forward pass, one all-reduce; means over the ranks.",
        frames.means(*STAGE_LATENCIES),
        unit="ms",
    )


def cpu_against_throughput() -> Panel:
    """Return the chart of CPU, GPU and throughput by time: the system layer need not know the step."""
    cpu, gpu, throughput = map(queries.printed, ("cpu_load", "gpu_utilization", "rollout_throughput"))
    series = [
        queries.mean_by_time(name, alias=name, ref=ref) for name, ref in zip((cpu, gpu, throughput), "ABC", strict=True)
    ]
    return panels.timeline(
        "CPU and GPU against throughput",
        "CPU load (5 minutes) and GPU utilisation, means over the nodes; throughput, mean over the ranks, on the "
        "right. Throughput down while the CPU is busy and the GPU idle: data loading.",
        series,
        overrides=[
            panels.override(gpu, {"unit": panels.UNITS["%"]}),
            panels.right_axis(throughput, "tokens/s"),
        ],
    )


def _anomalies() -> Panel:
    columns = {
        "@timestamp": "time",
        "step": "step",
        "rank": "rank",
        "anomaly.severity": "severity",
        "anomaly.rule": "rule",
        "anomaly.metric": "metric",
        "anomaly.value": "value",
        "anomaly.message": "message",
    }
    target = queries.documents(f"{queries.RUN} AND kind:anomaly")
    shown = [frames.keep(*columns, ref="A"), frames.renamed(columns)]
    return panels.table(
        "Anomalies",
        "What rules found, newest first; they are also marked in the charts by time.",
        (target, shown),
        link=(points.STEP, points.RANK_OF_ROW, "metric=${__data.fields.metric:percentencode}"),
    )


def _troubles() -> Panel:
    return panels.log_lines(
        "Warnings and errors",
        "Lines of level warning or above, and lines that close a traceback, newest first.",
        queries.lines(f"{queries.RUN} AND {_CHOSEN} AND ({_BAD} OR _exists_:error.type)"),
        link=(points.STEP, points.RANK_OF_ROW),
    )


def _lines_of_step() -> Panel:
    return panels.log_lines(
        "Lines of step $step",
        "All lines of the step that is written above; * is any step.",
        queries.lines(f"{queries.RUN} AND {_CHOSEN} AND kind:(log OR event) AND step:${{step}}"),
        link=(points.STEP, points.RANK_OF_ROW),
    )


_BAD = "log.level:(warning OR error OR critical OR fatal)"
_CHOSEN = f"{queries.OF_STAGES} AND {queries.OF_RANKS}"
