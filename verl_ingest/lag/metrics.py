"""What Fluent Bit says of itself: its metrics on the loopback address."""

import re
import urllib.request
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPException
from time import sleep
from typing import NamedTuple
from urllib.error import HTTPError

from verl_ingest.errors import KitError
from verl_ingest.lag.facts import Agent
from verl_ingest.settings import Settings

# As text: only there each counter has the time when it last changed.
PATH = "/api/v2/metrics"
TIMEOUT_S = 5
STARTS_S = (0.2, 0.4, 0.8, 1.6)  # an agent that has just started answers 404 until it has counted something
_LINE = re.compile(r"(\S+)Z fluentbit_(\w+?)(?:\{(.*)\})? = (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def read(settings: Settings) -> Agent:
    """Return the counters of the agent on this node; raises KitError where none answers."""
    address = f"127.0.0.1:{settings.agent.metrics_port}"
    try:
        text = _get(address)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or str(reason)
        if isinstance(error, HTTPError):
            why = f"it answers {error.code}"
        raise KitError(
            f"No agent answers at {address} ({why}); start Fluent Bit on this node, or set agent.metrics_port."
        ) from None
    if not is_fluent_bits(text):
        raise KitError(f"What answers at {address} is not Fluent Bit; set agent.metrics_port.")
    return parse(text)


def _get(address: str, waits_s: Sequence[float] = STARTS_S) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}{PATH}", timeout=TIMEOUT_S) as answer:
            return answer.read().decode(errors="replace")
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND or not waits_s:
            raise
    sleep(waits_s[0])
    return _get(address, waits_s[1:])


def is_fluent_bits(text: str) -> bool:
    """Tell whether an answer is one that `parse` reads."""
    return "fluentbit_build_info" in text


def parse(text: str) -> Agent:
    """Return the counters in what Fluent Bit answers at PATH: a line each, `TIME fluentbit_NAME{LABELS} = NUMBER`."""
    samples = list(_samples(text))

    def total(name: str) -> int:
        return int(sum(sample.value for sample in samples if sample.name == name))

    return Agent(
        version=next(sample.labels["version"] for sample in samples if sample.name == "build_info"),
        uptime_s=total("uptime"),
        delivered=total("output_proc_records_total"),
        dropped=total("output_dropped_records_total"),
        retries=total("output_retries_total"),
        errors=total("output_errors_total"),
        truncated=total("input_long_line_truncated_total"),
        chunks=total("storage_chunks"),
        paused=tuple(
            sample.labels["name"] for sample in samples if sample.name == "input_ingestion_paused" and sample.value
        ),
        untaken_s=_untaken_s(samples),
    )


class _Sample(NamedTuple):
    """A number, and when it last changed: seconds since 1970 by the node's clock."""

    at: float
    name: str
    labels: dict[str, str]
    value: float


def _samples(text: str) -> list[_Sample]:
    found = (_LINE.fullmatch(line) for line in text.splitlines())
    return [
        _Sample(_seconds(match[1]), match[2], dict(_LABEL.findall(match[3] or "")), float(match[4]))
        for match in found
        if match
    ]


def _seconds(time: str) -> float:
    """Return seconds since 1970; the last three of nine digits are more than Python reads."""
    return datetime.fromisoformat(f"{time[:26]}+00:00").timestamp()


def _untaken_s(samples: Sequence[_Sample]) -> float:
    """Return how long ago something was last delivered by an output whose newest try came later and was not taken."""
    delivered, retried = (
        {sample.labels["name"]: sample.at for sample in samples if sample.name == f"output_{name}_total"}
        for name in ("proc_records", "retries")
    )
    now = max(sample.at for sample in samples)
    return max((now - at for name, at in delivered.items() if retried.get(name, at) > at), default=0.0)
