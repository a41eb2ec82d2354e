"""What is abnormal about a step, in short plain sentences, the worst first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_ingest.catalog import troubles
from verl_ingest.catalog.metrics import Alarm, Catalogue
from verl_ingest.context import errors, samples
from verl_ingest.context.metrics import (
    Judged,
    Straggler,
    best_spellings,
    extra_work,
    is_judged,
    without_expected,
    without_twins,
)
from verl_ingest.context.stages import StageTime
from verl_ingest.context.words import DASH, counted, duration, first_line, listed, number, ranks, sigmas
from verl_ingest.query import bodies
from verl_ingest.query.store import Key, Levels, Scores

MOST_METRICS = 5
MOST_NAMES = 3
LONG_STEP = 2.0  # times the median of the steps before
INCOMPLETE = 0.8
NOT_FINITE = "not_finite"
LOSS_TERMS = ("loss_policy", "loss_value", "loss_kl", "loss_entropy")
KL_TERM = "loss_kl"
MOST_KL_OF_LOSS = 0.9
# Records that were lost, or deleted from the index, look like ranks that fell silent.
_AUDIT = "`verl-ingest audit PATH` tells whether lines are lost"
EMPTINESS = ("empty_response_ratio", "aborted_ratio")

Line = Mapping[str, Any]  # a folded line as `step --json` has it


@dataclass(frozen=True)
class Finding:
    """One abnormal thing; `metrics` are the names it speaks of, `rank` and `host` whom to look at.

    `trouble` is its entry of troubles.yml where it is not a metric that left its range; `alone` where the other ranks
    are as usual.
    """

    sentence: str
    metrics: tuple[str, ...] = ()
    rank: int | None = None
    host: str | None = None
    trouble: str | None = None
    alone: bool = False


def first_action(finding: Finding, catalogue: Catalogue, run_id: str) -> str | None:
    """Return what to do first about it: for its trouble, for the one rank that is unlike the others, or its metric."""
    if finding.trouble is not None:
        return troubles.load()[finding.trouble].first_action
    if finding.alone:
        compare = f"`verl-ingest series {run_id} {finding.metrics[0]} --by rank`"
        return f"Look at rank {finding.rank}: its batch and samples, its GPU and host; {compare} compares it."
    meanings = (catalogue.find(name) for name in finding.metrics)
    return next((meaning.first_action for meaning in meanings if meaning is not None and meaning.first_action), None)


def is_critical(finding: Finding, catalogue: Catalogue) -> bool:
    """Tell whether the step is lost with it: an error, a lost rank, NaN or infinity in what must be finite."""
    if finding.trouble == NOT_FINITE:
        return any(metric and metric.finite_required for metric in map(catalogue.find, finding.metrics))
    return finding.trouble is not None and troubles.load()[finding.trouble].critical


def of_errors(found: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say the error to blame, and what followed from it."""
    if not found:
        return []
    first = found[0]
    rank = first["ranks"][0] if first["ranks"] else None
    return [Finding(errors.sentence(found), rank=rank, host=first["host"], trouble=first["kind"])]


def of_warnings(logs: Sequence[Line], nonfinite: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Say the warnings that are known to mean trouble; of NaN only where no metric says so."""
    found = []
    for line in logs:
        trouble = troubles.warned_of(line["message"]) if line["level"] in bodies.WARNING_LEVELS else None
        if trouble is not None and not (trouble.name == NOT_FINITE and nonfinite):
            where = f" on {ranks(line['ranks'])}" if line["ranks"] else ""
            rank = line["ranks"][0] if line["ranks"] else None
            text = first_line(line["message"]).rstrip(".")
            found.append(Finding(f"Warning{where}: {text}.", rank=rank, trouble=trouble.name))
    return found


def of_loss(judged: Sequence[Judged]) -> list[Finding]:
    """Say that KL is nearly all of the loss, by the terms of the console's loss breakdown."""
    terms = {metric.quantity: abs(metric.pooled.mean) for metric in judged if metric.quantity in LOSS_TERMS}
    share = terms.get(KL_TERM, 0.0) / (sum(terms.values()) or 1.0)
    if len(terms) < 2 or share <= MOST_KL_OF_LOSS:
        return []
    names = tuple(metric.key.name for metric in judged if metric.quantity == KL_TERM)
    return [Finding(f"KL is {number(100 * share)} % of the loss.", metrics=names, trouble="kl_drowns_loss")]


def of_nonfinite(nonfinite: Sequence[Mapping[str, Any]], catalogue: Catalogue) -> list[Finding]:
    """Say which metrics were NaN or infinite, and on which ranks; once for those that were so on the same ranks."""
    ranks_of: dict[tuple[str, str], set[int]] = {}
    for entry in nonfinite:
        on = ranks_of.setdefault((entry["metric"], entry["kind"]), set())
        if entry["rank"] is not None:
            on.add(entry["rank"])
    golden = {name for metric in catalogue.golden for name in metric.names}
    alike: dict[tuple[str, frozenset[int]], list[str]] = {}
    for (metric, kind), on in sorted(ranks_of.items(), key=lambda item: item[0][0] not in golden):
        alike.setdefault((kind, frozenset(on)), []).append(metric)
    return [
        Finding(
            f"{_some(names)}{f' of {ranks(on)}' if on else ''} {'is' if len(names) == 1 else 'are'} {WORDS[kind]}.",
            metrics=tuple(names),
            rank=min(on, default=None),
            trouble=NOT_FINITE,
        )
        for (kind, on), names in alike.items()
    ]


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return listed(names if more <= 1 else [*names[:MOST_NAMES], f"{more} more metrics"])


WORDS = {"nan": "NaN", "inf": "infinite", "-inf": "minus infinity", "null": "null (NaN or infinite)"}


def of_missing(missing: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Say which ranks fell silent, and in which stages."""
    stages_of: dict[tuple[int, ...], list[str]] = {}
    for stage, absent in missing.items():
        stages_of.setdefault(tuple(absent), []).append(stage)
    return [
        Finding(
            f"{ranks(absent).capitalize()} {'is' if len(absent) == 1 else 'are'} missing in {listed(stages)}, "
            f"seen in the steps before; {_AUDIT}.",
            rank=absent[0],
            trouble="missing_rank",
        )
        for absent, stages in stages_of.items()
    ]


def of_metrics(
    judged: Sequence[Judged], stragglers: Sequence[Straggler], levels: Mapping[Key, Levels]
) -> list[Finding]:
    """Say which ranks are stragglers, and which metrics left their usual range or have a rank that left the others.

    At most five metrics are named. Deviations to the good side (a forward pass that got faster) are no news alone, but
    belong to the picture of a bad step: they come last, if there is room.
    """
    slow = _of_stragglers(stragglers)
    told = {name for finding in slow for name in finding.metrics}
    candidates = without_expected(without_twins(best_spellings(judged)))
    urgent = sorted((metric for metric in candidates if metric.key.name not in told), key=_urgency)
    bad = [metric for metric in urgent if metric.is_bad]
    good = [metric for metric in urgent if metric.deviates and not metric.is_bad and is_judged(metric.meaning)]
    room = max(MOST_METRICS - len(told), 0)
    shown = [*bad, *(good if bad or slow else [])][:room]
    rest = len(bad[room:])
    more = [Finding(f"{counted(rest, 'more metric')} left the usual range.")] if rest else []
    steps = sorted({step for of_metric in levels.values() for step in of_metric})
    return [*slow, *(_of_metric(metric, steps) for metric in shown), *more]


def _of_stragglers(stragglers: Sequence[Straggler]) -> list[Finding]:
    """Say it once for the ranks of one host that are slow in the same things."""
    of_rank: dict[int, list[Straggler]] = {}
    for straggler in stragglers:
        of_rank.setdefault(straggler.rank, []).append(straggler)
    alike: dict[tuple[str | None, frozenset[str]], list[list[Straggler]]] = {}
    for slow in of_rank.values():
        alike.setdefault((slow[0].host, frozenset(each.judged.key.name for each in slow)), []).append(slow)
    return [
        Finding(
            f"{ranks(slow[0].rank for slow in group).capitalize()}{f' ({host})' if host else ''} "
            f"{'is a straggler' if len(group) == 1 else 'are stragglers'}: "
            f"{listed([_slowness(straggler) for straggler in group[0][:2]])}.",
            metrics=tuple(straggler.judged.key.name for straggler in group[0]),
            rank=group[0][0].rank,
            host=host,
            trouble="straggler",
        )
        for (host, _), group in alike.items()
    ]


def _slowness(straggler: Straggler) -> str:
    value = number(straggler.value, straggler.judged.unit)
    return f"{straggler.judged.label} {value} is {straggler.value / straggler.others:.1f} times the other ranks'"


def of_samples(scores: Mapping[str, Scores], judged: Sequence[Judged]) -> list[Finding]:
    """Say that many responses are empty, where no metric that stands out says so."""
    told = any(metric.quantity in EMPTINESS and metric.is_bad for metric in judged)
    sentence = None if told else samples.emptied(scores)
    return [Finding(sentence, trouble="empty_responses")] if sentence else []


def of_step_time(stages: Sequence[StageTime], judged: Sequence[Judged]) -> list[Finding]:
    """Say that the whole step took long, where no metric says so and no extra work explains it."""
    if extra_work(judged):
        return []
    return [
        Finding(
            f"The step took {duration(stage.duration)}, {stage.duration / stage.median:.1f} times the median of the "
            f"steps before ({duration(stage.median)}).",
            trouble="long_step",
        )
        for stage in stages
        if stage.stage == "trainer"
        and stage.metric is None
        and None not in (stage.duration, stage.median)
        and stage.duration > LONG_STEP * stage.median
    ]


def of_completeness(completeness: Mapping[str, Any]) -> list[Finding]:
    """Say that records are missing, where no rank is."""
    expected, found = completeness["expected"], completeness["found"]
    if expected is None or found >= INCOMPLETE * expected:
        return []
    here = f"{counted(found, 'metric record')} of the step {'is' if found == 1 else 'are'}"
    return [Finding(f"Only {here} here, the steps before had {expected:,}; {_AUDIT}.", trouble="missing_records")]


def _of_metric(metric: Judged, steps: Sequence[int]) -> Finding:
    rank = metric.driver.rank if metric.driver else metric.pooled.worst_rank
    alone = metric.driver
    named = {"metrics": (metric.key.name,), "rank": rank if metric.outliers else None, "alone": alone is not None}
    if metric.deviates or alone:
        value, before = number(metric.pooled.mean, metric.unit), f"steps {steps[0]}{DASH}{steps[-1]}"
        median = number(metric.usual.median)
        if metric.usual.sigma == 0:
            sentence = f"{metric.label} is {value}; in {before} it was {median} throughout"
        else:
            side = "above" if metric.z > 0 else "below"
            sentence = f"{metric.label} {value} is {sigmas(metric.z)} {side} {before} (median {median})"
        if alone:
            sentence += f"; rank {alone.rank} alone drives it ({number(alone.value)})"
        elif metric.outliers:
            sentence += f"; farthest is rank {metric.outliers[0].rank} ({number(metric.outliers[0].value)})"
        return Finding(f"{sentence}.", **named)
    if metric.alarm:
        return Finding(f"{metric.label} {_drift(metric, metric.alarm)}.", **named)
    far = metric.outliers[0]
    more = f" and {counted(len(metric.outliers) - 1, 'more rank')}" if len(metric.outliers) > 1 else ""
    return Finding(
        f"{metric.label} of rank {far.rank} is {number(far.value, metric.unit)}{more}; the other ranks have "
        f"{number(far.others)}.",
        metrics=(metric.key.name,),
        rank=far.rank,
        alone=not more,
    )


def _drift(metric: Judged, alarm: Alarm) -> str:
    mean, before = metric.pooled.mean, metric.at_first
    value, first = number(mean, metric.unit), f"{number(before.median)} in the first {before.steps} steps"
    if alarm.swing is not None:
        return f"{value} is {number(abs(mean - before.median))} away from its {first}"
    limit, side = (alarm.above, "above") if alarm.above is not None else (alarm.below, "below")
    return f"{value} is {side} its alarm limit {number(limit)}; it was {first}"


def _urgency(metric: Judged) -> tuple[bool, float]:
    return not metric.is_bad, -metric.distance
