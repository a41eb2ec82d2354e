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

Span = tuple[int, int]  # first and last record, in ms since 1970


def for_step(
    settings: Settings, run_id: str, step: int, span: Span | None, *, rank: int | None = None
) -> dict[str, str | None]:
    """Return the addresses of a step's page and of its records in Kibana and Grafana; None where the setting is null.

    Without a span, which is that of the step's records, Kibana and Grafana look at RECENT.
    """
    links: dict[str, str | None] = {"page": None, "kibana": None, "grafana": None}
    if settings.service_url:
        links["page"] = page.step(settings.service_url, run_id, step, rank=rank)
    if settings.kibana_url:
        since, until = _window(span, KIBANA_MARGIN_MS, iso)
        links["kibana"] = kibana.discover(settings.kibana_url, run_id, step, since=since, until=until, rank=rank)
    if settings.grafana_url:
        since, until = _window(span, GRAFANA_MARGIN_MS, str)
        links["grafana"] = grafana.dashboard(settings.grafana_url, run_id, step, since=since, until=until, rank=rank)
    return links


def explore(settings: Settings, run_id: str, step: int, span: Span | None, *, rank: int | None = None) -> str | None:
    """Return the address of a step's records in Grafana's Explore, as `for_step` does."""
    if not settings.grafana_url:
        return None
    since, until = _window(span, KIBANA_MARGIN_MS, str)
    return grafana.explore(settings.grafana_url, run_id, step, since=since, until=until, rank=rank)


def add(context: StepContext, settings: Settings, *, rank: int | None = None) -> StepContext:
    """Put the links of its step into a context."""
    body, times = context.body, context.body["time"]
    span = (parse_time(times["first"]), parse_time(times["last"])) if times["first"] else None
    links = for_step(settings, body["run_id"], body["step"], span, rank=rank)
    return replace(context, body=body | {"links": links})


def _window(span: Span | None, margin_ms: int, write: Callable[[int], str]) -> tuple[str, str]:
    return (write(span[0] - margin_ms), write(span[1] + margin_ms)) if span else RECENT
