"""Settings -> what is rolled out to hosts: playbooks, the agent's folder, the unit, a script for where no systemd runs.

Pure but for the certificate, which is read from its file.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_ingest import assets
from verl_ingest.edge import fluentbit, folder
from verl_ingest.lag import metrics
from verl_ingest.settings import Settings

UNIT = "verl-ingest.service"
_CREDENTIAL = f"/run/credentials/{UNIT}/elasticsearch"  # where systemd lays what LoadCredential=elasticsearch names
_AS_THEY_ARE = (
    *("deploy.yml", "start.yml", "stop.yml", "undeploy.yml"),
    *("look.yml", "look.sh", "metrics.yml", "marks.yml", "mark.sh"),
)
_PLUGIN = "callback_plugins/events.py"
_HOMES = ("/home", "/root", "/run/user")  # what ProtectHome hides
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def files(settings: Settings) -> dict[str, str]:
    """Return path below build/hosts -> text; raises SettingsError where the certificate can't be read."""
    own = on_host(settings)
    agent = folder.files(own)
    if settings.elasticsearch_ca_certs:
        agent["ca.pem"] = folder.certificate(settings.elasticsearch_ca_certs)
    if own.agent.secret_file:
        agent["fluent-bit-systemd.yaml"] = fluentbit.render(_with_secret(own, _CREDENTIAL))
    as_they_are = {name: assets.path(f"templates/hosts/{name}").read_text("utf-8") for name in (*_AS_THEY_ARE, _PLUGIN)}
    values = variables(settings)
    return {
        **as_they_are,
        **{f"agent/{name}": text for name, text in agent.items()},
        "variables.yml": assets.template("hosts/variables.yml.j2").render(values),
        "agent.sh": assets.template("agent.sh.j2").render(values),
        UNIT: assets.template("hosts/verl-ingest.service.j2").render(values),
        **_kit(settings),
    }


def variables(settings: Settings) -> dict[str, Any]:
    """Return what the templates know of the settings."""
    own, hosts, server = on_host(settings), settings.deploy.hosts, urlsplit(settings.elasticsearch_url)
    source = settings.deploy.secret_file
    logs = [path for tail in fluentbit.inputs(settings) for path in tail["path"].split(",")]
    listen = _EVERYWHERE.get(own.agent.metrics_listen, own.agent.metrics_listen)
    return {
        "hosts": hosts,
        "fluent_bit": hosts.fluent_bit,
        "state": own.agent.state,
        "secret_file": own.agent.secret_file,
        "secret_source": str(source.absolute()) if source else None,
        "metrics_url": f"http://{f'[{listen}]' if ':' in listen else listen}:{own.agent.metrics_port}{metrics.PATH}",
        "metrics_port": own.agent.metrics_port,
        "forward_port": own.agent.forward_port,
        "elasticsearch_host": server.hostname,
        "elasticsearch_port": server.port or (443 if server.scheme == "https" else 80),
        "logs": logs,
        "config": f"{hosts.folder}/{'fluent-bit-systemd' if own.agent.secret_file else 'fluent-bit'}.yaml",
        "tmp": any(_is_below(path, "/tmp", "/var/tmp") for path in (*logs, own.agent.state)),
        "home": any(_is_below(path, *_HOMES) for path in (*logs, own.agent.state)),
    }


def on_host(settings: Settings) -> Settings:
    """Return the settings as they are on a host: the files that are copied lie in the kit's folder there."""
    hosts = settings.deploy.hosts
    copied = f"{hosts.folder}/secret" if settings.deploy.secret_file else None
    own = _with_secret(settings, settings.agent.secret_file or copied)
    certificate = Path(hosts.folder, "ca.pem") if settings.elasticsearch_ca_certs else None
    # Each host has a name of its own, in VERL_INGEST_NODE.
    return own.model_copy(update={"node": None, "elasticsearch_ca_certs": certificate})


def _kit(settings: Settings) -> Mapping[str, str]:
    """Return units for the one machine that has the kit: its service, and the timer of retention where that is set."""
    names = ["verl-ingest-serve.service"]
    if settings.retention.days:
        names += ["verl-ingest-retention.service", "verl-ingest-retention.timer"]
    kit = Path(sys.executable).with_name("verl-ingest")
    values = {"kit": kit, "protect_home": "read-only" if _is_below(str(kit), *_HOMES) else "yes"}
    return {f"kit/{name}": assets.template(f"hosts/kit/{name}.j2").render(values) for name in names}


def _with_secret(settings: Settings, path: str | None) -> Settings:
    return settings.model_copy(update={"agent": settings.agent.model_copy(update={"secret_file": path})})


def _is_below(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
