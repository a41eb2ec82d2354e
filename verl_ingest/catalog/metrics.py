"""Load and check metrics.yml, and find the metric behind a name as it stands in a log."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, TypeVar

from verl_ingest.catalog import CatalogueError, read

# In the order in which a step goes through them.
STAGES = ("rollout", "reward", "critic", "actor", "trainer", "system")
LAYERS = ("data flow", "compute flow", "resource flow")
DIRECTIONS = ("up", "down", "either", "none")
TRENDS = ("rising", "falling", "long")

REQUIRED = ("name", "short", "stage", "layer", "direction")
KEYS = (
    *REQUIRED,
    *("names", "extremes", "patterns", "unit", "non_negative", "finite"),
    *("healthy", "alarm", "causes", "first_action", "golden"),
)


@dataclass(frozen=True)
class Range:
    """Bounds of healthy values; None is no bound."""

    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None:
            return f"below {self.high:g}"
        if self.high is None:
            return f"above {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Alarm:
    """One limit: above, below, or a swing of that size; `times` makes it a multiple of another metric's size."""

    above: float | None = None
    below: float | None = None
    swing: float | None = None
    trend: str | None = None
    times: str | None = None

    def __str__(self) -> str:
        limits = {"above": self.above, "below": self.below, "swing of": self.swing}
        text = next(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
        if self.times:
            text += f" x |{self.times}|"
        return {None: text, "long": f"{text} for long"}.get(self.trend, f"{text} and {self.trend}")


Part = TypeVar("Part", Range, Alarm)


@dataclass(frozen=True)
class Metric:
    """One quantity: `names` are its exact names, `name` first; `patterns` are the beginnings of a family's names.

    `unit` is empty for a plain number, `direction` says which way is bad (none: neither), `causes` and `first_action`
    are given wherever a way is bad.
    """

    name: str
    short: str
    stage: str
    layer: str
    direction: str
    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    unit: str = ""
    non_negative: bool = False
    finite_required: bool = False
    healthy: Range | None = None
    alarms: tuple[Alarm, ...] = ()
    causes: tuple[str, ...] = ()
    first_action: str | None = None
    golden: bool = False

    def spelling(self, there: Container[str]) -> str | None:
        """Return the best of its exact names that is there, None where none is."""
        return next((name for name in self.names if name in there), None)


@dataclass(frozen=True)
class Catalogue:
    """All metrics in the order of the file."""

    metrics: tuple[Metric, ...]

    def find(self, name: str) -> Metric | None:
        """Find the metric of a name as printed, byte for byte: an exact name wins, then the longest pattern."""
        exact = self._by_name.get(name)
        if exact is not None:
            return exact
        return next((metric for prefix, metric in self._by_prefix if name.startswith(prefix)), None)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Return the exact names of the metric that `name` means, best first; of a family or a stranger just `name`."""
        metric = self.find(name)
        return metric.names if metric is not None and name in metric.names else (name,)

    def quantity(self, typed: str) -> str:
        """Return the metric that a user means, in any case where only one fits; `typed` itself where none does."""
        exact = self.names_of(typed)[0]
        alike = {metric.name for metric in self.metrics if typed.lower() in map(str.lower, metric.names)}
        return alike.pop() if exact == typed and len(alike) == 1 else exact

    def explicit_names(self) -> tuple[str, ...]:
        """Return every exact name, sorted: those the index template maps on their own."""
        return tuple(sorted(self._by_name))

    @cached_property
    def golden(self) -> tuple[Metric, ...]:
        """The six metrics to look at first, in the order in which they are shown."""
        return tuple(metric for metric in self.metrics if metric.golden)

    @cached_property
    def _by_name(self) -> dict[str, Metric]:
        return {name: metric for metric in self.metrics for name in metric.names}

    @cached_property
    def _by_prefix(self) -> list[tuple[str, Metric]]:
        prefixes = [(pattern[:-1], metric) for metric in self.metrics for pattern in metric.patterns]
        return sorted(prefixes, key=lambda item: len(item[0]), reverse=True)


@cache
def load() -> Catalogue:
    """Load the catalogue; raises CatalogueError when an entry is wrong."""
    return check(read("metrics.yml"))


def check(entries: Iterable[Mapping[str, Any]]) -> Catalogue:
    """Turn the content of metrics.yml into a Catalogue; raises CatalogueError at the first wrong entry."""
    metrics = [metric for entry in entries for metric in _metrics(entry)]
    owner: dict[str, str] = {}
    for metric in metrics:
        for name in (*metric.names, *metric.patterns):
            if name in owner:
                raise CatalogueError(f"metrics.yml: {metric.name} and {owner[name]} both have {name}; leave it to one.")
            owner[name] = metric.name
    for metric in metrics:
        for alarm in metric.alarms:
            if alarm.times is not None and owner.get(alarm.times) != alarm.times:
                raise CatalogueError(
                    f"metrics.yml: an alarm of {metric.name} is in times {alarm.times}, which is no metric."
                )
    return Catalogue(tuple(metrics))


def _metrics(entry: Mapping[str, Any]) -> list[Metric]:
    """Make the metric of an entry, and those of its extremes."""
    label = entry.get("name", f"the entry {dict(entry)}")
    _check_entry(label, entry)
    metric = Metric(
        name=entry["name"],
        short=entry["short"],
        stage=entry["stage"],
        layer=entry["layer"],
        direction=entry["direction"],
        names=tuple(dict.fromkeys((entry["name"], *entry.get("names", ())))),
        patterns=tuple(entry.get("patterns", ())),
        unit=entry.get("unit", ""),
        non_negative=entry.get("non_negative", False),
        finite_required="finite" in entry,
        healthy=_part(label, Range, entry["healthy"]) if "healthy" in entry else None,
        alarms=tuple(_part(label, Alarm, alarm) for alarm in entry.get("alarm", ())),
        causes=tuple(entry.get("causes", ())),
        first_action=entry.get("first_action"),
        golden=entry.get("golden", False),
    )
    _check_limits(metric)
    return [metric, *_extremes(metric, entry.get("extremes", ()))]


def _extremes(metric: Metric, prefixes: Iterable[str]) -> Iterable[Metric]:
    if not prefixes:
        return
    for end, word in (("min", "Smallest"), ("max", "Largest")):
        name = f"{metric.name.removesuffix('_mean')}_{end}"
        yield Metric(
            name=name,
            short=f"{word} value behind `{metric.name}` in the batch.",
            stage=metric.stage,
            layer=metric.layer,
            direction="none",
            names=(name, *(f"{prefix}/{end}" for prefix in prefixes)),
            unit=metric.unit,
            non_negative=metric.non_negative,
        )


def _check_entry(label: str, entry: Mapping[str, Any]) -> None:
    for key in REQUIRED:
        if not entry.get(key):
            raise _refused(label, f"has no {key}; add it.")
    _check_keys(label, "key", entry, KEYS)
    for key, allowed in (("stage", STAGES), ("layer", LAYERS), ("direction", DIRECTIONS), ("finite", ("required",))):
        if key in entry and entry[key] not in allowed:
            raise _refused(label, f"has the {key} {entry[key]}; use {', '.join(allowed)}.")
    if not entry.get("names") and not entry.get("patterns"):
        raise _refused(label, "has neither names nor patterns, so no log can hold it; add one.")
    for name in entry.get("names", ()):
        if "*" in name:
            raise _refused(label, f"has the name {name}; put it under patterns.")
    for pattern in entry.get("patterns", ()):
        if not pattern.endswith(("/*", "_*")) or pattern.count("*") > 1:
            raise _refused(label, f"has the pattern {pattern}; a pattern ends in /* or _* and has no other *.")
    judged = entry["direction"] != "none"
    for key in ("causes", "first_action"):
        if judged != bool(entry.get(key)):
            has = "has no" if judged else "has"
            raise _refused(label, f"{has} {key}, but its direction is {entry['direction']}; mend one.")


def _check_limits(metric: Metric) -> None:
    healthy = metric.healthy
    if healthy == Range():
        raise _refused(metric.name, "has an empty healthy range; give low, high or both.")
    if healthy and None not in (healthy.low, healthy.high) and healthy.low >= healthy.high:
        raise _refused(metric.name, f"is healthy from {healthy}; the low end must be below the high end.")
    if metric.non_negative and healthy and (healthy.low or 0) < 0:
        raise _refused(metric.name, f"is non_negative and healthy from {healthy.low:g}; mend one.")
    if metric.golden and not metric.alarms:
        raise _refused(metric.name, "is golden and has no alarm; add one.")
    if metric.alarms and metric.direction == "none":
        raise _refused(metric.name, "has an alarm, but its direction is none; mend one.")
    for alarm in metric.alarms:
        if [alarm.above, alarm.below, alarm.swing].count(None) != 2:
            raise _refused(metric.name, "has an alarm without exactly one of above, below and swing; mend it.")
        if alarm.trend not in (None, *TRENDS):
            raise _refused(metric.name, f"has an alarm with the trend {alarm.trend}; use {', '.join(TRENDS)}.")
        if healthy and alarm.times is None and _reaches_into(alarm, healthy):
            raise _refused(metric.name, f"has the alarm {alarm} inside its healthy range {healthy}; mend one.")


def _reaches_into(alarm: Alarm, healthy: Range) -> bool:
    above = None not in (alarm.above, healthy.high) and alarm.above < healthy.high
    below = None not in (alarm.below, healthy.low) and alarm.below > healthy.low
    return above or below


def _part(label: str, kind: type[Part], content: Mapping[str, Any]) -> Part:
    _check_keys(label, f"{kind.__name__.lower()} key", content, [field.name for field in fields(kind)])
    return kind(**content)


def _check_keys(label: str, what: str, content: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in content:
        if key not in known:
            raise _refused(label, f"has the unknown {what} {key}; use {', '.join(known)}.")


def _refused(label: str, problem: str) -> CatalogueError:
    return CatalogueError(f"metrics.yml: {label} {problem}")
