"""Which kind of cluster the settings name, and its files."""

from pathlib import Path

from verl_ingest import render
from verl_ingest.cluster.compose import Compose
from verl_ingest.cluster.hosts import Hosts
from verl_ingest.cluster.kubernetes import Kubernetes
from verl_ingest.cluster.slurm import Slurm
from verl_ingest.cluster.target import Target
from verl_ingest.errors import SettingsError
from verl_ingest.settings import Settings

KINDS = {kind.name: kind for kind in (Kubernetes, Hosts, Slurm, Compose)}
BUILD = Path("build")


def of(settings: Settings) -> Target:
    """Return the target of `deploy.target`; raises SettingsError where it names none."""
    name = settings.deploy.target
    if name is None:
        raise SettingsError(f"deploy.target is not set; set it to {' or '.join(KINDS)}.")
    return KINDS[name](settings)


def build(target: Target) -> Path:
    """Write the target's files into a folder of their own, without those of former settings, and return the folder.

    Raises KitError where a file can't be written.
    """
    folder, files = BUILD / target.name, target.files()
    render.write(folder, files)
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in files:
            path.unlink()
    return folder
