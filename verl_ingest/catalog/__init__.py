"""The two catalogues: what fields a document may have (fields.yml), what the metrics mean (metrics.yml)."""

from pathlib import Path
from typing import Any

import yaml

from verl_ingest.errors import KitError


class CatalogueError(KitError):
    """An entry of a catalogue is incomplete or contradicts another."""


def read(name: str) -> Any:
    """Read the catalogue file `name` of this package."""
    # libyaml reads metrics.yml ten times faster than the pure Python loader, and every command waits for it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(__file__).with_name(name).read_bytes(), Loader=loader)
