"""The files that a Grafana server reads when it starts: deploy/grafana."""

import json
from typing import Any

import yaml

from verl_ingest.grafana import board, sources

FOLDER = "deploy/grafana"
HEAD = "# Rendered by `verl-ingest render`; edit verl_ingest/grafana.\n"
# Where deploy/grafana/dashboards lies for the Grafana server.
MOUNTED = "${VERL_DASHBOARDS}"


def files(dashboards: list[board.Dashboard], folder: dict[str, str]) -> dict[str, str]:
    """Return the files: path relative to the repository -> text. What differs by server are environment variables."""
    login = sources.by_password("${ELASTICSEARCH_USERNAME}", "${ELASTICSEARCH_PASSWORD}")
    found = sources.data_sources("${ELASTICSEARCH_URL}", "${PROMETHEUS_URL}", "${VERL_SERVICE_URL}", login)
    provider = {
        "name": "verl",
        "type": "file",
        "folder": folder["title"],
        "folderUid": folder["uid"],
        "allowUiUpdates": False,
        "options": {"path": MOUNTED},
    }
    return {dashboard.path: _json(dashboard.body) for dashboard in dashboards} | {
        f"{FOLDER}/provisioning/datasources/verl.yaml": _yaml({"apiVersion": 1, "datasources": found}),
        f"{FOLDER}/provisioning/dashboards/verl.yaml": _yaml({"apiVersion": 1, "providers": [provider]}),
    }


def _json(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=2, sort_keys=True) + "\n"


def _yaml(content: dict[str, Any]) -> str:
    """Write YAML in which Grafana's own variables are kept from being taken for those of the environment."""
    apart = json.loads(json.dumps(content))  # YAML would write parts that are shared as anchors
    return HEAD + yaml.safe_dump(apart, sort_keys=False, width=120).replace("${__", "$${__")
