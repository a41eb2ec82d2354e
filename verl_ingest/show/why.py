"""Why a run is as it is, in a terminal: the verdict, what to do, the first error, then every episode."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.context.why import CRITICAL, NORMAL, UNKNOWN, Why
from verl_ingest.context.words import DASH, duration, gist, listed
from verl_ingest.show import lines

STYLES = {NORMAL: "bold green", UNKNOWN: "bold yellow", CRITICAL: "bold red"}
DOT = " \u00b7 "
EPISODES = 8
EVENTS = 12
OTHERS = 3


def render(why: Why) -> RenderableType:
    """Return everything that fits on a screen, the verdict first."""
    body = why.entry()
    parts = [
        Group(_title(body), _sentences(body)),
        _advice(body),
        _first_error(body),
        _episodes(body["episodes"]),
        _trust(body),
    ]
    spaced = [line for part in parts if part is not None for line in (Text(), part)]
    return Group(*spaced[1:])


def _title(body: Mapping[str, Any]) -> Text:
    title = Text(body["run_id"], style="bold")
    of = f" of {body['total_steps']}" if body["total_steps"] is not None else ""
    step = "no step yet" if body["step"] is None else f"step {body['step']}{of}"
    heard = "not known" if body["age_s"] is None else f"{duration(body['age_s'])} ago"
    details = (step, f"attempt {body['attempt']}", body["exit"]["state"], f"last record {heard}")
    title.append(f"{DOT}{DOT.join(details)}{DOT}", style="not bold")
    title.append(body["verdict"], style=STYLES.get(body["severity"], "bold yellow"))
    return title


def _sentences(body: Mapping[str, Any]) -> RenderableType:
    bad = body["severity"] not in (NORMAL, UNKNOWN)
    table = _grid()
    for sentence in body["sentences"]:
        table.add_row(Text("!" if bad else DASH, style="red" if bad else "dim"), Text(sentence))
    return table


def _advice(body: Mapping[str, Any]) -> RenderableType | None:
    """Show what to do first, where to go back to, and what to type for it."""
    checkpoint = body["checkpoint"]
    healthy = body["began"] is not None
    rows = [("first action", body["todo"])] if body["todo"] else []
    if checkpoint is not None:
        where = f"step {checkpoint['step']}{DOT}{checkpoint['path'] or 'its path is not in the logs'}"
        rows.append(("last healthy checkpoint" if healthy else "last checkpoint", where))
    elif healthy:
        rows.append(("last healthy checkpoint", "none is in the logs"))
    if body["resume"] and healthy:
        rows.append(("resume with", body["resume"]))
    if not rows:
        return None
    table = _grid()
    for heading, text in rows:
        table.add_row(Text(heading, style="bold"), Text(text, overflow="fold"))
    return table


def _first_error(body: Mapping[str, Any]) -> RenderableType | None:
    error = body["first_error"]
    if error is None:
        return None
    gpu = [] if error["gpu"] is None else [Text(f"GPU {error['gpu']}", style="dim")]
    frames = [
        Text(line, style="dim", no_wrap=True, overflow="ellipsis")
        for frame in error["frames"]
        for line in frame.split("\n")
    ]
    then = [Text(f"then {', '.join(body['then'])}")] if body["then"] else []
    first = lines.render({**error, "message": gist(error["message"])})
    return Group(Text("first error", style="bold"), first, *gpu, *frames, *then)


def _episodes(episodes: Sequence[Mapping[str, Any]]) -> RenderableType | None:
    """Show the newest episodes, each as its cause and what else happened in it, all with their own steps."""
    if not episodes:
        return None
    table = _grid()
    table.add_column(no_wrap=True)
    for episode in reversed(episodes[-EPISODES:]):
        cause = next(event for event in episode["events"] if event["sentence"] == episode["sentence"])
        table.add_row(Text(_steps(cause), style="bold"), _told(cause))
        events = [event for event in episode["events"] if event["sentence"] != episode["sentence"]]
        for event in events[:EVENTS]:
            table.add_row(Text(f"  {_steps(event)}", style="dim"), _told(event))
        if len(events) > EVENTS:
            table.add_row("", Text(f"{len(events) - EVENTS} more: --json shows them", style="dim"))
    more = len(episodes) - EPISODES
    note = [Text(f"{more} earlier: --json shows them", style="dim")] if more > 0 else []
    return Group(Text("abnormal steps, the last ones first", style="bold"), table, *note)


def _told(event: Mapping[str, Any]) -> Text:
    """Say an event, and name the other metrics that left with it."""
    text, others = Text(event["sentence"]), event["other_metrics"]
    if others:
        more = len(others) - OTHERS
        named = [*others[:OTHERS], *([f"{more} more"] if more > 0 else [])]
        text.append(f" With it: {listed(named)}.", style="dim")
    return text


def _steps(part: Mapping[str, Any]) -> str:
    return str(part["first"]) if part["first"] == part["last"] else f"{part['first']}{DASH}{part['last']}"


def _trust(body: Mapping[str, Any]) -> Text | None:
    """Say which steps were looked at, and which clocks are off."""
    looked = body["looked_at"]
    if looked is None:
        return None
    parts = [f"looked at steps {looked['first']} to {looked['last']}"]
    parts += [body["note"]] if body["note"] else []
    parts += [f"clock of {host} {skew:+.2f} s" for host, skew in body["clock_skew"].items()]
    return Text(DOT.join(parts), style="dim")


def _grid() -> Table:
    return Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
