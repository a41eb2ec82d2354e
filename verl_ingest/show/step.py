"""A step's context in a terminal: the verdict, then numbers, errors, lines and samples, no wider than 100 columns."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context.metrics import is_judged, one_spelling
from verl_ingest.context.step import StepContext
from verl_ingest.context.words import DASH, counted, deviation, duration, first_line, number, ranks
from verl_ingest.show import lines, samples

METRICS = 10
ERRORS = 3
FRAMES = 6
LINES = 5
MESSAGE = 300  # characters of a line
GAP = 2
WIDE = 80
DOT = " \u00b7 "
LEVELS_SHOWN = ("warning", "warn")


def render(context: StepContext, catalogue: Catalogue, *, width: int, rank: int | None = None) -> RenderableType:
    """Return everything that fits on a screen of `width` columns; `rank` adds the column of that rank."""
    body = context.body
    named = [name for finding in context.findings for name in finding.metrics]
    parts = [
        _title(body, bool(context.findings)),
        _summary(body["summary"], len(context.findings)),
        _metrics(body["metrics"], named, catalogue, rank, wide=width >= WIDE),
        _stages(body["stages"]),
        _attempts(body["attempts"]),
        _resources(body, named),
        _errors(body["errors"]),
        _lines(body),
        samples.of_step(body, width),
        _trust(body),
        _links(body["links"]),
    ]
    return Group(*_spaced([part for part in parts if part is not None]))


def _spaced(parts: Sequence[RenderableType]) -> Iterator[RenderableType]:
    for number_, part in enumerate(parts):
        if number_ > 1:
            yield Text()
        yield part


def _title(body: Mapping[str, Any], abnormal: bool) -> Text:
    times = body["time"]
    when = f"{times['first'][:10]} {times['first'][11:19]}{DASH}{times['last'][11:19]} UTC" if times["first"] else ""
    when = f"about {when}" if times["estimated"] else when
    on = ranks(body["ranks"]) if any(metric["values"] for metric in body["metrics"]) else ""
    of = f" of {body['total_steps']}" if body["total_steps"] is not None else ""
    title = Text(f"{body['run_id']}{DOT}step {body['step']}{of}", style="bold")
    details = [f"attempt {body['attempt']}", when, on]
    title.append(f"{DOT}{DOT.join(filter(None, details))}", style="not bold")
    title.append(DOT)
    title.append("abnormal" if abnormal else "normal", style="bold red" if abnormal else "bold green")
    return title


def _summary(sentences: Sequence[str], abnormal: int) -> RenderableType:
    table = _grid()
    for number_, sentence in enumerate(sentences):
        style = "red" if number_ < abnormal else "dim"
        table.add_row(Text("!" if number_ < abnormal else DASH, style=style), Text(sentence))
    return table


def _metrics(
    metrics: Sequence[Mapping[str, Any]], named: Sequence[str], catalogue: Catalogue, rank: int | None, *, wide: bool
) -> RenderableType | None:
    """Show the metrics that the summary names, the golden six, then those farthest from usual; one spelling each."""
    if not metrics:
        return None
    golden = [name for metric in catalogue.golden for name in metric.names]
    first = {name: place for place, name in enumerate(dict.fromkeys((*named, *golden)))}
    ordered = sorted(metrics, key=lambda metric: first.get(metric["name"], len(first)))
    spelt = one_spelling(
        ordered, lambda metric: (catalogue.names_of(metric["name"])[0], metric["name"], metric["stage"])
    )
    shown = spelt[:METRICS]
    columns = ("mean", "usual", "z", "min", "max", "unit", "worst") if wide else ("mean", "usual", "z")
    table = _grid(header=True)
    table.add_column("metric", overflow="fold", min_width=12)
    for heading in (*([f"rank {rank}"] if rank is not None else []), *columns):
        table.add_column(heading, justify="left" if heading in ("unit", "worst") else "right", no_wrap=True)
    for metric in shown:
        cells = _cells(metric, is_judged(catalogue.find(metric["name"])))
        own = [] if rank is None else [number(metric["values"].get(str(rank)))]
        style = "red" if metric["name"] in named else None
        table.add_row(Text(metric["name"]), *own, *(cells[column] for column in columns), style=style)
    more = len(metrics) - len(shown)
    note = Text(f"{counted(more, 'more metric')}: --stage STAGE or --json shows them", style="dim")
    return Group(table, note) if more else table


def _cells(metric: Mapping[str, Any], judged: bool) -> dict[str, str]:
    z = metric["previous"]["z"] if judged else None  # of a counter, which only goes up, it means nothing
    return {
        **{name: number(metric[name]) for name in ("mean", "min", "max")},
        "usual": number(metric["previous"]["median"]),
        "z": deviation(z),
        "unit": metric["unit"] or "",
        "worst": f"rank {metric['worst_rank']}" if metric["min"] < metric["max"] else "",
    }


def _stages(stages: Sequence[Mapping[str, Any]]) -> Text | None:
    known = [stage for stage in stages if stage["duration_s"] is not None]
    if not known:
        return None
    text = Text("stages  ", style="bold")
    for number_, stage in enumerate(known):
        usual = stage["median_s"]
        slow = usual is not None and stage["duration_s"] > 1.5 * usual
        name = "whole step" if stage["stage"] == "trainer" else stage["stage"]
        text.append(f"{DOT if number_ else ''}{name} ", style="not bold")
        text.append(duration(stage["duration_s"]), style="red" if slow else "not bold")
        text.append(f" (usual {duration(usual)})" if slow else "", style="not bold dim")
    return text


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    if len(attempts) < 2:
        return None
    names = list(dict.fromkeys(name for attempt in attempts for name in attempt["metrics"]))[:6]
    table = _grid(header=True)
    for heading in ("attempt", "last record", *names):
        table.add_column(Text(heading), justify="right")
    for attempt in attempts:
        values = [number(attempt["metrics"].get(name)) for name in names]
        table.add_row(str(attempt["attempt"]), f"{attempt['last'][11:19]} UTC", *values)
    return table


def _resources(body: Mapping[str, Any], named: Sequence[str]) -> RenderableType | None:
    """Show the bad host beside the median host; where all are bad alike, the median host beside what is usual."""
    resources = body["resources"]
    if not resources or (resources["host"] is None and not set(named) & set(resources["metrics"])):
        return None
    median = f"median of {counted(resources['hosts'], 'host')}"
    usual = {metric["name"]: metric["previous"]["median"] for metric in body["metrics"]}
    table = _grid(header=True)
    table.add_column("resources")
    for heading in (median, "usual") if resources["host"] is None else (resources["host"], median):
        table.add_column(Text(heading), justify="right")
    for name, metric in resources["metrics"].items():
        values = (
            (metric["median"], usual.get(name)) if resources["host"] is None else (metric["value"], metric["median"])
        )
        table.add_row(Text(name), *(number(value, metric["unit"] or "") for value in values))
    return table


def _errors(errors: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    if not errors:
        return None
    shown = [_short(error) for error in errors[:ERRORS]]
    stack = (errors[0]["stack_trace"] or "").strip().split("\n")[-FRAMES:]
    frames = [Text(frame, style="dim", no_wrap=True, overflow="ellipsis") for frame in stack if frame]
    rest = len(errors) - ERRORS
    more = [Text(f"{counted(rest, 'more error')}: --json shows them", style="dim")] if rest > 0 else []
    return Group(Text("errors, the first one first", style="bold"), shown[0], *frames, *shown[1:], *more)


def _lines(body: Mapping[str, Any]) -> RenderableType | None:
    if not body["logs"]:
        return None
    warnings = [line for line in body["logs"] if line["level"] in LEVELS_SHOWN][:LINES]
    rest = len(body["logs"]) - len(warnings)
    more = f"{counted(rest, 'more line')}: verl-ingest logs {shlex.quote(body['run_id'])} --steps {body['step']}"
    heading = [Text("warnings", style="bold")] if warnings else []
    return Group(*heading, *map(_short, warnings), *([Text(more, style="dim")] if rest else []))


def _short(line: Mapping[str, Any]) -> Text:
    return lines.render({**line, "message": first_line(line["message"], MESSAGE)})


def _trust(body: Mapping[str, Any]) -> Text:
    """Say how much of the step is here, how old it is, and which clocks are off."""
    complete = body["completeness"]
    expected = complete["expected"]
    of = f" of {expected:,}" if expected is not None and expected >= complete["found"] else ""
    noun = "metric record" if (expected if of else complete["found"]) == 1 else "metric records"
    parts = [f"{complete['found']:,}{of} {noun}", f"{complete['flagged']:,} flagged"]
    if complete["age_s"] is not None:
        parts.append(f"{duration(complete['age_s'])} old")
    parts += [f"clock of {host} {skew:+.2f} s" for host, skew in body["clock_skew"].items()]
    if body["missing_ranks"]:
        parts.append("missing " + ranks({rank for absent in body["missing_ranks"].values() for rank in absent}))
    return Text(DOT.join(parts), style="dim")


def _links(links: Mapping[str, str | None]) -> RenderableType | None:
    """Show the addresses that there are, cut at the end of the line; the terminal opens them whole."""
    known = [
        Text(address, style=f"link {address}", no_wrap=True, overflow="ellipsis")
        for address in links.values()
        if address
    ]
    return Group(*known) if known else None


def _grid(*, header: bool = False) -> Table:
    return Table(box=None, show_header=header, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
