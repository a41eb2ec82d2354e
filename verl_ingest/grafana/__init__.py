"""Grafana's dashboards and data sources as plain dicts; pure: asks no server.

Plain dicts and no library of models: the one that Grafana publishes has neither data links nor the fields of
Elasticsearch's annotations, and the numbers of its releases make pip take the one for 10.1.
"""

from verl_ingest.grafana import overview, page, pipeline, provisioning, ranks, sources, system, variables
from verl_ingest.grafana.board import Dashboard

SERVICE = "http://127.0.0.1:9110"  # where `verl-ingest serve` listens by default
FIRST_METRIC = "kl_divergence"


def folder() -> dict[str, str]:
    """Return the folder that the dashboards belong into."""
    return {"uid": "verl", "title": "verl"}


def dashboards(service_url: str = SERVICE) -> list[Dashboard]:
    """Return the dashboards; their points lead to the service at that address."""
    time = variables.source("datasource", "Data by time", "elasticsearch", sources.BY_TIME)
    steps = variables.source("steps", "Data by step", "elasticsearch", sources.BY_STEP)
    agents = variables.source("prometheus", "Agents' metrics", "prometheus", sources.PROMETHEUS)
    run = [variables.service(service_url), variables.run(), variables.attempt()]
    every, stage, rank = variables.every(), variables.stage(), variables.rank()
    metric = [variables.metric(FIRST_METRIC), variables.worst()]
    return [
        overview.build([time, steps, *run, stage, rank, variables.step(), every]),
        ranks.build([time, steps, *run, rank, *metric, every]),
        system.build([time, steps, *run, rank]),
        pipeline.build([time, steps, agents, *run, pipeline.agent()]),
    ]


def files(service_url: str = SERVICE) -> dict[str, str]:
    """Return what a Grafana server is given as files: path relative to the repository -> text."""
    return provisioning.files(dashboards(service_url), folder())


def pages() -> dict[str, str]:
    """Return the page about the dashboards: path relative to the repository -> text."""
    return page.files(dashboards(), SERVICE)
