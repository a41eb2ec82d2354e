"""The records of the last day: what came, what is odd about it, what is missing. Judging is pure, `check` reads."""

from collections.abc import Iterator, Mapping
from functools import partial

from elasticsearch import Elasticsearch

from verl_ingest.checks import lately, twice
from verl_ingest.checks.check import Check, Verdict
from verl_ingest.checks.day import Day, read
from verl_ingest.checks.server import asked
from verl_ingest.context.words import counted, duration, listed, number
from verl_ingest.index import client
from verl_ingest.settings import Settings

NAME = "records"
LITTLE, MUCH = 0.01, 0.2  # shares of the records


def check(settings: Settings, *, now: int) -> Iterator[Check]:
    """Yield a check on each matter of the records; `now` is in ms since 1970."""
    with client.connect(settings) as server:
        yield from asked(NAME, partial(_looks, settings, now), server, settings)


def _looks(settings: Settings, now: int, server: Elasticsearch) -> Iterator[Check]:
    day = read(server, settings, now=now)
    if day is None or not day.runs:
        remedy = "load a run (`verl-ingest load FOLDER`), or start an agent (docs/agent.md)"
        yield Check(NAME, "watch", "There is none yet.", remedy)
        return
    yield from judge(day, now=now)
    yield from asked("runs", partial(lately.check, day, now), server, settings)
    yield from asked("written twice", partial(twice.again, day), server, settings)
    yield from asked("in two days", partial(twice.in_two_days, day), server, settings)


def judge(day: Day, *, now: int) -> Iterator[Check]:
    """Yield a check on each matter that the one search tells of."""
    yield _newest(day, now)
    yield _times(day)
    yield _nonfinite(day)
    yield _unparsed(day)
    yield _ignored(day)
    yield _cut(day)
    yield _dropped(day)


def _newest(day: Day, now: int) -> Check:
    age, span = (duration(max(ms, 0) / 1_000) for ms in (now - day.until, day.until - day.since))
    found = f"Newest: {age} old, of {day.runs[0].run_id}; {counted(day.records, 'record')} in the {span} up to it."
    return Check(NAME, "fine", found)


def _times(day: Day) -> Check:
    """Judge times: a wrong zone moves records by hours, an unread one puts them where they were read."""
    assumed = day.flags.get("zone_assumed", 0)
    unread = day.flags.get("time_invalid", 0)
    found = [
        f"{counted(records, 'record')} {what}"
        for records, what in (
            (day.ahead, "in the future"),
            (assumed, "of a guessed time zone"),
            (unread, "of a time that could not be read"),
        )
        if records
    ]
    if not found:
        return Check("times", "fine", "None is in the future, no zone was guessed.")
    remedy = "set `timezone` to the zone that the logs are written in" if day.ahead or assumed else _FLAGGED
    return Check("times", "watch", f"{listed(found)}.", remedy)


def _nonfinite(day: Day) -> Check:
    """Judge the run with the largest share: among many healthy runs one that is ill would not be seen."""
    run = max(day.runs, key=lambda run: run.nonfinite / max(run.metrics, 1))
    found = _share(run.nonfinite, run.metrics, "metric record", "with a NaN or an infinity", run.run_id)
    if run.nonfinite < LITTLE * run.metrics or not run.nonfinite:
        return Check("non-finite", "fine", found)
    return Check(
        "non-finite",
        "watch",
        f"{found[:-1]}, most {_most(run.nonfinite_names)}.",
        f"`verl-ingest why {run.run_id}` says since when; a metric that is never finite is better not logged",
    )


def _unparsed(day: Day) -> Check:
    run = max(day.runs, key=lambda run: run.unparsed / run.records)
    found = _share(run.unparsed, run.records, "record", "of a line that was not understood", run.run_id)
    verdict: Verdict = "fine"
    if run.unparsed >= LITTLE * run.records:
        verdict = "wrong" if run.unparsed >= MUCH * run.records else "watch"
    remedy = f"`verl-ingest logs {run.run_id}` shows them; leave files that are no logs out of `paths`"
    return Check("unparsed", verdict, found, "" if verdict == "fine" else remedy)


def _ignored(day: Day) -> Check:
    if not day.ignored:
        return Check("unsearchable", "fine", "Every field of every record can be searched.")
    found = f"{counted(day.ignored, 'record')} with fields that no search finds, most {_most(day.ignored_names)}."
    remedy = "they are kept in _source; see the check `fields`, and docs/reference/fields.md for what a field takes"
    return Check("unsearchable", "watch", found, remedy)


def _cut(day: Day) -> Check:
    """Judge what was cut or could not be used of a line, whatever is left of it."""
    lost = {
        name: day.flags[name]
        for name in ("truncated", "step_invalid", "rank_invalid", "run_id_cut", "stack_endless", "normalizer_error")
        if name in day.flags
    }
    if not lost:
        return Check("flags", "fine", "No line was cut, none has a step or rank that can't be used.")
    verdict: Verdict = "wrong" if "normalizer_error" in lost else "watch"
    return Check("flags", verdict, f"Records by flag: {_most(lost)}.", _FLAGGED)


def _dropped(day: Day) -> Check:
    if not day.dropped:
        return Check("left out", "fine", "Agents report no line that a rule left out.")
    found = f"{counted(sum(day.dropped.values()), 'line')} by rule, as agents report: {_most(day.dropped)}."
    return Check("left out", "fine", found)


def _share(part: int, whole: int, noun: str, what: str, run_id: str) -> str:
    if not part:
        return f"None {what}."
    return f"{run_id}: {part:,} of {counted(whole, noun)} ({number(100 * part / max(whole, 1))} %) {what}."


def _most(counts: Mapping[str, int]) -> str:
    """Write names with their counts, the largest first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count:,}" for name, count in ordered)


_FLAGGED = "look at them in Kibana (flags: NAME), and in docs/reference/fields.md for what each means"
