"""From what a link of a dashboard or an alert carries to one step: `read` its query, `find` the step."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from verl_ingest.context import names, step
from verl_ingest.errors import InputError
from verl_ingest.query.store import MOST_RANK, RunReader
from verl_ingest.query.times import iso, parse_time

ELSEWHERE = ("kibana", "grafana", "explore")
MOST_PARAMETERS = 64
LAST_TIME = 9_214_646_400_000  # 2262, when times with nanoseconds end
LONGEST_BUCKET = 86_400_000
# How long after the last record a time still is that step's, where the run's own pace is not known.
SLACK_MS = 60_000


@dataclass(frozen=True)
class Wanted:
    """What a link asks for; None where it does not say. Times are in ms."""

    run_id: str | None = None
    step: int | None = None
    time: int | None = None
    bucket: int = 0
    rank: int | None = None
    stage: str | None = None
    metric: str | None = None
    to: str | None = None
    back: str | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """What narrows the records that are looked at; in the name of a metric * would stand for any."""
        metric = None if self.metric and "*" in self.metric else self.metric
        found = {"rank": self.rank, "stage": self.stage, "metric": metric}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Found:
    """The step; where there is none to be sure of, the nearest ones and a sentence."""

    step: int | None
    nearest: Sequence[int] = ()
    sentence: str = ""


def read(query: str) -> Wanted:
    """Read a query string as it was sent; what a dashboard left empty or could not fill in counts as absent.

    Raises InputError for a step that is too large, and for far too many parameters.
    """
    # Everything after back= belongs to it: some versions of Grafana decode a whole link, and its & with it.
    match = re.search(r"(?:^|&)back=", query)
    before, back = (query[: match.start()], query[match.end() :]) if match else (query, "")
    try:
        pairs = parse_qsl(before, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise InputError(f"The link has more than {MOST_PARAMETERS} parameters.") from None
    values: dict[str, str] = {}
    for name, value in pairs:
        if not _is_absent(value):
            values.setdefault(name, value)
    run_id = _first(values, "run_id", "run", "var-run_id")
    of, _, number = values.get("step_key", "").rpartition("|")
    return Wanted(
        run_id=run_id or of or None,
        step=_step(values.get("step") or number),
        time=_time(_first(values, "t", "time")),
        bucket=min(_digits(values.get("bucket_ms"), most=LAST_TIME) or 0, LONGEST_BUCKET),
        rank=_digits(values.get("rank"), most=MOST_RANK),
        stage=values.get("stage"),
        metric=values.get("metric"),
        to=values["to"] if values.get("to") in ELSEWHERE else None,
        back=_back(back),
    )


def find(run: RunReader, wanted: Wanted) -> Found:
    """Return the step that is asked for: that number, else the one at that time.

    Labels narrow the records as long as any record has them.
    """
    if wanted.step is not None:
        if run.span(wanted.step) is not None:
            return Found(wanted.step)
        return Found(None, step.nearest(run, wanted.step), f"Run '{run.run_id}' has no step {wanted.step}.")
    if wanted.time is None:
        raise InputError("The link names neither a step nor a time; add step=128, or t= in ms since 1970.")
    near = _at(run, wanted.time, wanted.bucket, wanted.labels)
    if near is None:
        return Found(None, (), f"Run '{run.run_id}' has no records with a step.")
    first, last = run.span(near)
    if wanted.time + wanted.bucket < first:
        return Found(None, [near], f"{_when(wanted.time)} is before the first step of run '{run.run_id}'.")
    if wanted.time > last + SLACK_MS and _is_over(run, near, wanted.time - last):
        return Found(None, [near], f"{_when(wanted.time)} is after the last step of run '{run.run_id}'.")
    return Found(near)


def _at(run: RunReader, time: int, bucket: int, labels: Mapping[str, Any]) -> int | None:
    """Return the step of most records in the bucket, else that of the last record before; without labels if need be."""
    for wanted in (labels, {}) if labels else ({},):
        step_ = run.step_in(time, time + bucket, wanted) if bucket else None
        step_ = run.step_at(time, wanted) if step_ is None else step_
        if step_ is not None:
            return step_
    return None


def _is_over(run: RunReader, last_step: int, silent_ms: int) -> bool:
    """Tell whether no later step came for longer than steps of this run take."""
    if run.steps(low=last_step + 1, size=1, newest_first=False):
        return False
    pace = run.pace(last_step)
    return not pace or silent_ms > 2_000 * statistics.median(pace)


def _is_absent(value: str) -> bool:
    """Tell whether a dashboard had nothing to fill in: it leaves the name of the variable, encoded once or twice."""
    return not value or value == "NaN" or value.startswith(("${", "$%7B", "$%7b"))


def _first(values: Mapping[str, str], *names_: str) -> str | None:
    return next((values[name] for name in names_ if name in values), None)


def _digits(text: str | None, *, most: int) -> int | None:
    if text is None or not re.fullmatch(r"[0-9]{1,16}", text) or int(text) > most:
        return None
    return int(text)


def _step(text: str | None) -> int | None:
    return names.step_number(text) if text and re.fullmatch(r"[0-9]+", text) else None


def _time(text: str | None) -> int | None:
    """Read milliseconds since 1970, or an ISO 8601 text."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9.]+", text):
        return _digits(text.partition(".")[0], most=LAST_TIME)
    try:
        time = parse_time(text)
    except InputError:
        return None
    return time if 0 <= time <= LAST_TIME else None


def _back(text: str) -> str | None:
    """Return where the way back leads; it is encoded, unless Grafana decoded it."""
    plain = text if re.match("/|[a-z]+://", text) else unquote(text)
    return None if _is_absent(plain) else plain


def _when(time: int) -> str:
    return f"{iso(time)[:19].replace('T', ' ')} UTC"
