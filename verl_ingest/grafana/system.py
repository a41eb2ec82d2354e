"""Dashboard `System layer`: GPUs, memory, CPU, disk, against what the run gets out of them."""

from verl_ingest.grafana import overview, panels, queries
from verl_ingest.grafana.board import Dashboard, Row, dashboard
from verl_ingest.grafana.panels import Panel
from verl_ingest.grafana.variables import Variable
from verl_ingest.links import points

UID = "verl-system"
TITLE = "verl: system layer"
LEAST_UTILISATION = 60.0
_RANK = (points.RANK_OF_SERIES, points.TIME)


def build(variables: list[Variable]) -> Dashboard:
    """Return the dashboard."""
    rows = [
        Row([overview.cpu_against_throughput(), _gpu_of_hosts()]),
        Row([_gpu_of_ranks(), _gpu_memory()]),
        Row([_peak_memory()]),
        Row([_of_hosts("cpu_load", "CPU load"), _of_hosts("disk_io_wait", "Disk wait", unit="ms")]),
    ]
    about = "GPU, memory, CPU and disk by time. Click on a point to open the step that was under way."
    return dashboard(UID, TITLE, about, variables, rows)


def _gpu_of_ranks() -> Panel:
    return _of_ranks(
        "gpu_utilization",
        "GPU utilisation by rank",
        "A GPU that idles while the others work waits for something of its own.",
        unit="%",
        limits={"low": LEAST_UTILISATION},
    )


def _gpu_memory() -> Panel:
    return _of_ranks("gpu_memory_used", "GPU memory by rank", "Memory in use on the rank's GPU.", unit="GB")


def _peak_memory() -> Panel:
    return _of_ranks(
        "actor_peak_memory",
        "Peak memory of the actor by rank",
        "The allocator's peak; one that rises over many steps ends out of memory.",
        unit="GB",
    )


def _gpu_of_hosts() -> Panel:
    return _of_hosts("gpu_utilization", "GPU utilisation", unit="%")


def _of_ranks(name: str, title: str, description: str, *, unit: str, limits: dict[str, float] | None = None) -> Panel:
    name = queries.printed(name)
    target = queries.mean_by_time(name, queries.terms("rank"), alias="{{term rank}}", where=queries.OF_RANKS)
    link = (*_RANK, points.metric(name))
    return panels.timeline(title, description, [target], unit=unit, link=link, limits=limits)


def _of_hosts(name: str, title: str, *, unit: str = "") -> Panel:
    description = "The mean of each host: compare a bad host with the others."
    name = queries.printed(name)
    target = queries.mean_by_time(name, queries.terms("host.name"), alias="{{term host.name}}")
    link = (points.TIME, points.metric(name))
    return panels.timeline(f"{title} by host", description, [target], unit=unit, link=link)
