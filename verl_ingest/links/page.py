"""The kit's own service: its pages, and what they are called in JSON.

`base` is where the service answers: its whole address, the path it has behind a proxy, or nothing.
"""

import re
from urllib.parse import quote, unquote, urlencode

API = "/api"


def runs(base: str = "") -> str:
    """Return the address of the list of runs."""
    return f"{base}/runs"


def run(base: str, run_id: str) -> str:
    """Return the address of a run's overview."""
    return f"{base}/runs/{segment(run_id)}"


def step(
    base: str,
    run_id: str,
    step: int,
    *,
    part: str = "",
    rank: int | None = None,
    metric: str | None = None,
    back: str | None = None,
) -> str:
    """Return the address of a step's page, or of a `part` of it; `back` is where its way back leads."""
    beneath = f"/{part}" if part else ""
    return f"{run(base, run_id)}/steps/{step}{beneath}{_query(rank=rank, metric=metric, back=back)}"


def compare(base: str, *run_ids: str, metric: str | None = None) -> str:
    """Return the address of the page that lays runs over each other."""
    return f"{base}/compare{_query(run=run_ids or None, metric=metric)}"


def drilldown(base: str, run_id: str, step: int, *, rank: int | None = None, to: str | None = None) -> str:
    """Return the address that leads to a step: to its page, or with `to` on to kibana, grafana or explore."""
    return f"{base}/drilldown{_query(step=step, rank=rank, to=to, run_id=run_id)}"


def segment(run_id: str) -> str:
    """Write a run's name as one segment of a path: what is not a letter, a digit, - . or _ is ~ and two hex digits.

    Percent signs would not do: browsers take `..` and `%2e%2e` for the folder above, proxies decode %2F, Grafana may
    decode all.
    """
    text = quote(run_id, safe="").replace("~", "~7E").replace("%", "~")
    return re.sub(r"^\.", "~2E", text)


def run_of(segment_: str) -> str:
    """Read what `segment` wrote; a name that was typed as it is, slashes and all, is read as well."""
    return unquote(re.sub("~([0-9A-F]{2})", r"%\1", segment_.replace("%", "%25")))


def _query(**values: object) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given, doseq=True, quote_via=quote, safe='')}" if given else ""
