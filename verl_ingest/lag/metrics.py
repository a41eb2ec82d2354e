"""What Fluent Bit says of itself: its metrics on the loopback address."""

import re
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException

from verl_ingest.errors import KitError
from verl_ingest.lag.facts import Agent
from verl_ingest.settings import Settings

TIMEOUT_S = 5
_LINE = re.compile(r"fluentbit_(\w+?)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def read(settings: Settings) -> Agent:
    """Return the counters of the agent on this node; raises KitError where none answers."""
    address = f"127.0.0.1:{settings.agent.metrics_port}"
    try:
        with urllib.request.urlopen(f"http://{address}/api/v2/metrics/prometheus", timeout=TIMEOUT_S) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason) or "it hangs up"
        raise KitError(
            f"No agent answers at {address} ({why}); start Fluent Bit on this node, or set agent.metrics_port."
        ) from None
    if "fluentbit_build_info" not in text:
        raise KitError(f"What answers at {address} is not Fluent Bit; set agent.metrics_port.")
    return parse(text)


def parse(text: str) -> Agent:
    """Return the counters in a text of Prometheus' format."""
    samples = list(_samples(text))

    def total(name: str) -> int:
        return int(sum(value for found, _, value in samples if found == name))

    return Agent(
        version=next(labels["version"] for name, labels, _ in samples if name == "build_info"),
        uptime_s=total("uptime"),
        delivered=total("output_proc_records_total"),
        dropped=total("output_dropped_records_total"),
        retries=total("output_retries_total"),
        errors=total("output_errors_total"),
        truncated=total("input_long_line_truncated_total"),
        chunks=total("storage_chunks"),
        paused=tuple(labels["name"] for name, labels, value in samples if name == "input_ingestion_paused" and value),
    )


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            yield match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
