from pathlib import Path

import pytest

from verl_ingest.catalog import CatalogueError, metrics
from verl_ingest.catalog.metrics import Alarm, Range

DATA = Path(__file__).parent / "data"

LOSS = {
    "name": "loss_mean",
    "names": ["loss", "actor/loss"],
    "short": "Loss.",
    "stage": "actor",
    "layer": "compute flow",
    "direction": "up",
    "causes": ["learning rate too high"],
    "first_action": "Lower it.",
}
TIMES = {
    "name": "phase_time",
    "patterns": ["timing_s/*"],
    "short": "Time of a phase.",
    "stage": "trainer",
    "layer": "compute flow",
    "unit": "s",
    "direction": "none",
    "non_negative": True,
}


def catalogue(**changes):
    """Check a small catalogue whose metric `loss_mean` has the changes; None takes a key away."""
    loss = {key: value for key, value in {**LOSS, **changes}.items() if value is not None}
    return metrics.check([loss, TIMES])


# The catalogue itself.


@pytest.mark.parametrize("source", ["rank_logs", "grpo", "ppo_legacy"])
def test_every_name_of_real_logs_is_found(source):
    names = (DATA / f"metric_names_{source}.txt").read_text().splitlines()
    assert len(names) > 20
    assert [name for name in names if metrics.load().find(name) is None] == []


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("Actor LR", "actor_learning_rate"),
        ("KL", "kl_ref"),
        ("Entropy", "entropy"),
        ("Reward", "reward_mean"),
        ("Adv Mean", "advantage_mean"),
        ("Adv Std", "advantage_std"),
        ("Clip Fraction", "clip_fraction"),
        ("Epoch", "epoch"),
        ("Rollout completed_s", "rollout_duration"),
        ("Tokens generated", "rollout_tokens"),
        ("Throughput", "rollout_throughput"),
        ("GPU Util", "gpu_utilization"),
        ("Loss breakdown policy", "loss_policy"),
        ("Loss breakdown value", "loss_value"),
        ("Loss breakdown kl", "loss_kl"),
        ("Loss breakdown entropy", "loss_entropy"),
        ("gpu/memory_used_gb", "gpu_memory_used"),
        ("system/disk_io_wait_ms", "disk_io_wait"),
    ],
)
def test_every_name_of_the_bracketed_console_and_the_system_layer_is_found(name, metric):
    assert metrics.load().find(name).name == metric


@pytest.mark.parametrize(
    "names",
    [
        ("actor/kl_loss", "actor/ppo_kl", "rollout_corr/kl", "Loss breakdown kl", "actor/kl_coef"),
        ("actor/entropy", "actor/entropy_loss", "Loss breakdown entropy"),
        ("critic/score/mean", "critic/rewards/mean", "critic/score/max", "critic/score/min", "reward_std"),
        ("throughput_tokens_per_sec", "perf/throughput", "Tokens generated"),
        ("rollout/latency_ms", "Rollout completed_s", "timing_s/gen", "timing_per_token_ms/gen"),
        ("actor/loss", "actor/pg_loss", "critic/loss", "critic/vf_loss"),
        ("actor/grad_norm", "critic/grad_norm"),
        ("actor/lr", "critic/lr"),
        ("memory/actor_peak_gb", "actor/perf/max_memory_allocated_gb", "actor/perf/max_memory_reserved_gb"),
        ("actor/perf/max_memory_allocated_gb", "critic/perf/max_memory_allocated_gb"),
        ("response_length/mean", "response_length_non_aborted/mean", "response_length/clip_ratio"),
        ("reward/critic_score_std", "reward_std", "adv_std"),
    ],
)
def test_different_things_stay_apart(names):
    assert len({metrics.load().find(name).name for name in names}) == len(names)


def test_spellings_of_the_kl_to_the_reference_are_one_metric():
    names = metrics.load().names_of("KL")
    assert names == metrics.load().names_of("kl_ref")
    assert names == (
        "kl_ref",
        "kl_divergence",
        "KL",
        "reward/kl_divergence",
        "actor/kl_loss",
        "actor/reward_kl_penalty",
    )


@pytest.mark.parametrize(
    ("name", "unit", "stage"),
    [
        ("timing_s/gen", "s", "rollout"),
        ("timing_s/update_critic", "s", "critic"),
        ("timing_s/param_sync", "s", "trainer"),
        ("timing_s/agent_loop/num_preempted/mean", "preemptions", "rollout"),
        ("timing_s/agent_loop/num_preempted/max", "preemptions", "rollout"),
        ("timing_s/agent_loop/slowest/num_preempted", "preemptions", "rollout"),
        ("timing_s/agent_loop/slowest/response_length", "tokens", "rollout"),
        ("timing_s/agent_loop/slowest/tool_calls", "s", "rollout"),
        ("timing_s/agent_loop/compute_score/min", "s", "reward"),
        ("timing_per_token_ms/ref", "ms/token", "actor"),
        ("timing_per_token_ms/other", "ms/token", "trainer"),
        ("critic/score/mean", "", "reward"),
        ("critic/rewards/max", "", "reward"),
        ("critic/values/min", "", "critic"),
        ("perf/max_memory_allocated_gb", "GiB", "actor"),
        ("critic/perf/cpu_memory_used_gb", "GiB", "critic"),
        ("gpu/memory_used_gb", "GB", "system"),
        ("val-core/openai/gsm8k/acc/mean@4", "", "reward"),
        ("val-aux/num_turns/max", "turns", "rollout"),
        ("kl_divergence", "nats", "reward"),
    ],
)
def test_unit_and_stage_are_those_of_the_quantity(name, unit, stage):
    metric = metrics.load().find(name)
    assert (metric.unit, metric.stage) == (unit, stage)


def test_the_golden_six_have_the_ranges_of_the_article():
    limits = {metric.name: (metric.healthy, metric.alarms) for metric in metrics.load().golden}
    assert list(limits.items()) == [
        ("kl_ref", (Range(0.005, 0.03), (Alarm(above=0.05, trend="rising"),))),
        ("entropy", (Range(1.5, 2.5), (Alarm(below=1.2, trend="falling"),))),
        ("reward_mean", (None, (Alarm(swing=0.3), Alarm(below=0.1, trend="long")))),
        ("advantage_mean", (None, (Alarm(below=0, trend="long"),))),
        ("advantage_std", (None, (Alarm(below=0.05), Alarm(below=2, times="advantage_mean")))),
        ("clip_fraction", (Range(high=0.1), (Alarm(above=0.3),))),
    ]


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("reward_mean", True),
        ("actor/grad_norm", True),
        ("kl_divergence", True),
        ("training/rollout_actor_probs_pearson_corr", False),
        ("response_length_non_aborted/mean", False),
        ("critic/score/max", False),
    ],
)
def test_nan_is_critical_only_where_it_is_always_wrong(name, required):
    assert metrics.load().find(name).finite_required is required


def test_the_template_maps_every_exact_name_once_and_no_family():
    names = metrics.load().explicit_names()
    assert list(names) == sorted(set(names))
    assert {"kl_ref", "KL", "actor/kl_loss", "critic/score/max", "timing_s/gen"} <= set(names)
    assert not any("*" in name for name in names)


def test_every_sentence_ends_in_a_full_stop_and_every_cause_does_not():
    for metric in metrics.load().metrics:
        assert metric.short.endswith("."), metric.name
        assert metric.first_action is None or metric.first_action.endswith("."), metric.name
        assert not any(cause.endswith(".") for cause in metric.causes), metric.name


# Finding.


def test_an_exact_name_wins_over_a_family():
    small = catalogue(names=["timing_s/loss"])
    assert small.find("timing_s/loss").name == "loss_mean"
    assert small.find("timing_s/loss2").name == "phase_time"


def test_the_longest_pattern_wins_whatever_the_order():
    for entries in (
        [LOSS | {"patterns": ["timing_s/agent_*"]}, TIMES],
        [TIMES, LOSS | {"patterns": ["timing_s/agent_*"]}],
    ):
        small = metrics.check(entries)
        assert small.find("timing_s/agent_loop").name == "loss_mean"
        assert small.find("timing_s/agents").name == "phase_time"


@pytest.mark.parametrize("name", ["Loss", "loss ", "actor/loss/x", "timing_s", "x/timing_s/gen", ""])
def test_names_are_compared_byte_for_byte(name):
    assert catalogue().find(name) is None


def test_names_of_a_family_or_a_stranger_are_the_name_itself():
    small = catalogue()
    assert small.names_of("actor/loss") == ("loss_mean", "loss", "actor/loss")
    assert small.names_of("timing_s/gen") == ("timing_s/gen",)
    assert small.names_of("other") == ("other",)


def test_what_a_user_types_means_a_metric_in_any_case_where_only_one_fits():
    small = catalogue(names=["loss", "Actor/Loss"])
    assert [small.quantity(typed) for typed in ("LOSS", "actor/loss", "loss_mean")] == ["loss_mean"] * 3
    two = metrics.check([{**LOSS, "names": ["loss"]}, {**LOSS, "name": "other", "names": ["LOSS"]}])
    assert [two.quantity(typed) for typed in ("LOSS", "loss", "Loss")] == ["other", "loss_mean", "Loss"]


def test_extremes_are_metrics_of_their_own_without_judgement():
    small = catalogue(extremes=["loss", "actor/loss"], unit="nats", alarm=[{"above": 1}], finite="required")
    lowest = small.find("actor/loss/min")
    assert lowest.names == ("loss_min", "loss/min", "actor/loss/min")
    assert (lowest.unit, lowest.stage, lowest.layer) == ("nats", "actor", "compute flow")
    assert (lowest.direction, lowest.alarms, lowest.causes, lowest.finite_required) == ("none", (), (), False)
    assert small.find("loss/max").name == "loss_max"
    assert small.find("loss").alarms == (Alarm(above=1),)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Range(0.005, 0.03), "0.005 to 0.03"),
        (Range(high=0.1), "below 0.1"),
        (Range(low=0), "above 0"),
        (Alarm(above=0.05, trend="rising"), "above 0.05 and rising"),
        (Alarm(below=0, trend="long"), "below 0 for long"),
        (Alarm(swing=0.3), "swing of 0.3"),
        (Alarm(below=2, times="advantage_mean"), "below 2 x |advantage_mean|"),
    ],
)
def test_limits_read_as_words(limit, text):
    assert str(limit) == text


# Checks.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short": None}, "loss_mean has no short; add it"),
        ({"stage": None}, "loss_mean has no stage; add it"),
        ({"layer": None}, "loss_mean has no layer; add it"),
        ({"direction": None}, "loss_mean has no direction; add it"),
        ({"stage": "actors"}, "loss_mean has the stage actors; use rollout, reward"),
        ({"layer": "compute"}, "loss_mean has the layer compute; use data flow"),
        ({"direction": "both"}, "loss_mean has the direction both; use up, down"),
        ({"finite": "yes"}, "loss_mean has the finite yes; use required"),
        ({"alias": ["x"]}, "loss_mean has the unknown key alias; use name"),
        ({"names": None}, "loss_mean has neither names nor patterns"),
        ({"names": ["actor/*"]}, r"loss_mean has the name actor/\*; put it under patterns"),
        ({"patterns": ["actor*"]}, r"loss_mean has the pattern actor\*; a pattern ends in"),
        ({"patterns": ["actor/*/loss"]}, "a pattern ends in"),
        ({"patterns": ["actor/*/*"]}, "a pattern ends in"),
        ({"patterns": ["timing_s/*"]}, r"phase_time and loss_mean both have timing_s/\*; leave it to one"),
        ({"names": ["phase_time"]}, "phase_time and loss_mean both have phase_time; leave it to one"),
        ({"names": ["loss", "loss/min"], "extremes": ["loss"]}, "loss_min and loss_mean both have loss/min"),
        ({"causes": None}, "loss_mean has no causes, but its direction is up"),
        ({"first_action": None}, "loss_mean has no first_action, but its direction is up"),
        ({"direction": "none"}, "loss_mean has causes, but its direction is none"),
        ({"direction": "none", "causes": None}, "loss_mean has first_action, but its direction is none"),
        ({"healthy": {}}, "loss_mean has an empty healthy range"),
        ({"healthy": {"low": 2, "high": 1}}, "loss_mean is healthy from 2 to 1; the low end"),
        ({"healthy": {"low": -1}, "non_negative": True}, "loss_mean is non_negative and healthy from -1"),
        ({"healthy": {"lo": 1}}, "loss_mean has the unknown range key lo; use low, high"),
        ({"alarm": [{"over": 1}]}, "loss_mean has the unknown alarm key over; use above"),
        ({"alarm": [{"trend": "rising"}]}, "without exactly one of above, below and swing"),
        ({"alarm": [{"above": 2, "below": 1}]}, "without exactly one of above, below and swing"),
        ({"alarm": [{"above": 1, "trend": "up"}]}, "an alarm with the trend up; use rising"),
        ({"alarm": [{"above": 1, "times": "losses"}]}, "an alarm of loss_mean is in times losses, which is no metric"),
        ({"alarm": [{"above": 1, "times": "loss"}]}, "an alarm of loss_mean is in times loss, which is no metric"),
        ({"alarm": [{"above": 1}], "healthy": {"high": 2}}, "the alarm above 1 inside its healthy range below 2"),
        ({"alarm": [{"below": 1}], "healthy": {"low": 0}}, "the alarm below 1 inside its healthy range above 0"),
        ({"golden": True}, "loss_mean is golden and has no alarm"),
    ],
)
def test_a_wrong_entry_is_refused(changes, message):
    with pytest.raises(CatalogueError, match=f"^metrics.yml: .*{message}.*[.]$"):
        catalogue(**changes)


def test_an_alarm_without_a_bad_direction_is_refused():
    with pytest.raises(CatalogueError, match="has an alarm, but its direction is none"):
        metrics.check([TIMES | {"alarm": [{"above": 1}]}])


def test_an_entry_without_a_name_is_shown_as_it_is():
    with pytest.raises(CatalogueError, match=r"the entry \{'short': 'Loss.'.* has no name; add it"):
        metrics.check([{"short": "Loss."}])


def test_an_alarm_at_the_edge_of_the_healthy_range_passes():
    small = catalogue(healthy={"low": 0, "high": 2}, alarm=[{"above": 2}, {"below": 0}])
    assert small.find("loss").healthy == Range(0, 2)
