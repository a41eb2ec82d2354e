"""Two runs side by side in a terminal: what their configurations differ in, then their metrics."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_ingest.context.compare import Comparison
from verl_ingest.context.words import DASH, counted, number

SETTINGS = 20
VALUE = 40  # characters of a setting


def render(comparison: Comparison) -> RenderableType:
    """Return the configuration's differences first, then the golden six and the metrics that were asked for."""
    body = comparison.entry()
    return Group(_config(body), Text(), _metrics(body))


def _config(body: Mapping[str, Any]) -> RenderableType:
    runs, changed = body["runs"], body["config"]
    if changed is None:
        silent = [run for run, printed in zip(runs, body["configs"], strict=True) if not printed]
        return Text(f"No configurations to compare: the logs of {' and '.join(silent)} have none.", style="dim")
    if not changed:
        return Text("The configurations are the same.")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("configuration", *runs):
        table.add_column(Text(heading), overflow="fold")
    for setting in changed[:SETTINGS]:
        table.add_row(Text(setting["key"]), *(Text(_short(value)) for value in setting["values"]))
    more = len(changed) - SETTINGS
    note = [Text(f"{counted(more, 'more setting')}: --json shows them", style="dim")] if more > 0 else []
    return Group(table, *note)


def _metrics(body: Mapping[str, Any]) -> RenderableType:
    if body["step"] is None:
        return Text("The two have no step in common.")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(Text(f"step {body['step']}"), overflow="fold")
    for heading in (*body["runs"], "difference", "last 50 steps", "largest"):
        table.add_column(Text(heading), justify="right", overflow="fold")
    for metric in body["metrics"]:
        largest = metric["largest"]
        at = DASH if largest is None else f"{number(largest['difference'])} at step {largest['step']}"
        values = (*metric["values"], metric["difference"], metric["recent_difference"])
        table.add_row(Text(metric["name"]), *map(number, values), at)
    return table


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= VALUE else f"{text[: VALUE - 1]}…"
