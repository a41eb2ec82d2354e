"""The links of one step."""

from collections.abc import Callable
from dataclasses import replace

from verl_ingest.context.step import StepContext
from verl_ingest.links import grafana, kibana, page
from verl_ingest.query.times import iso, parse_time
from verl_ingest.settings import Settings

RECENT = ("now-30d", "now")  # for a step whose time is not known; Kibana and Grafana both read it
KIBANA_MARGIN_MS = 60_000
GRAFANA_MARGIN_MS = 30 * 60_000  # its charts show what came before
# Where a link can lead, and the setting it takes.
SETTING = {"page": "service_url", "kibana": "kibana_url", "grafana": "grafana_url", "explore": "grafana_url"}

Span = tuple[int, int]  # first and last record, in ms since 1970


def address(
    settings: Settings, to: str, run_id: str, step: int, span: Span | None, *, rank: int | None = None
) -> str | None:
    """Return the address of a step's page, of its records in Kibana, of its run's dashboard in Grafana, or in Explore.

    `to` is one of SETTING; None where that setting is null. Without a span, which is that of the step's records, Kibana
    and Grafana look at RECENT.
    """
    base = getattr(settings, SETTING[to])
    if base is None:
        return None
    if to == "page":
        return page.step(base, run_id, step, rank=rank)
    if to == "kibana":
        since, until = _window(span, KIBANA_MARGIN_MS, iso)
        return kibana.discover(base, run_id, step, since=since, until=until, rank=rank)
    if to == "explore":
        since, until = _window(span, KIBANA_MARGIN_MS, str)
        return grafana.explore(base, run_id, step, since=since, until=until, rank=rank)
    since, until = _window(span, GRAFANA_MARGIN_MS, str)
    return grafana.dashboard(base, run_id, step, since=since, until=until, rank=rank)


def for_step(
    settings: Settings, run_id: str, step: int, span: Span | None, *, rank: int | None = None
) -> dict[str, str | None]:
    """Return the addresses that every answer about a step has; see `address`."""
    return {to: address(settings, to, run_id, step, span, rank=rank) for to in ("page", "kibana", "grafana")}


def add(context: StepContext, settings: Settings, *, rank: int | None = None) -> StepContext:
    """Put the links of its step into a context."""
    body, times = context.body, context.body["time"]
    span = (parse_time(times["first"]), parse_time(times["last"])) if times["first"] else None
    links = for_step(settings, body["run_id"], body["step"], span, rank=rank)
    return replace(context, body=body | {"links": links})


def _window(span: Span | None, margin_ms: int, write: Callable[[int], str]) -> tuple[str, str]:
    return (write(span[0] - margin_ms), write(span[1] + margin_ms)) if span else RECENT
