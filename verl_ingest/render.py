"""What is generated and committed: what agent and servers get by default settings, the reference."""

import difflib
import json
from pathlib import Path

from verl_ingest import assets, grafana
from verl_ingest.catalog import reference
from verl_ingest.edge import fluentbit
from verl_ingest.errors import KitError
from verl_ingest.index import apply, roles
from verl_ingest.kibana import objects
from verl_ingest.normalise import lua_settings
from verl_ingest.settings import Settings


def files() -> dict[str, str]:
    """Return the generated files: path relative to the repository -> text."""
    defaults = Settings.model_construct()  # whatever the environment says
    templates = {
        template.path: json.dumps(template.body, indent=2, sort_keys=True) + "\n" for template in apply.wanted(defaults)
    }
    agent = {
        "deploy/fluent-bit/fluent-bit.yaml": fluentbit.render(defaults),
        "deploy/fluent-bit/settings.lua": lua_settings.render(defaults),
    }
    return templates | {roles.FILE: roles.file()} | agent | dashboards(defaults) | reference.pages() | grafana.pages()


def dashboards(settings: Settings) -> dict[str, str]:
    """Return what Kibana imports and Grafana reads for these settings: path relative to the repository -> text."""
    imported = {"deploy/kibana/verl.ndjson": objects.ndjson(objects.objects(settings))}
    return imported | grafana.files(settings.service_url or grafana.SERVICE)


def diff(root: Path, files: dict[str, str]) -> str:
    """Return how the files below `root` differ from what they should be; an empty text where all are fresh."""
    parts = []
    for name, text in files.items():
        path = root / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        parts += difflib.unified_diff(
            old.splitlines(keepends=True), text.splitlines(keepends=True), name, f"{name} as rendered"
        )
    return "".join(parts)


def write(root: Path, files: dict[str, str]) -> list[str]:
    """Write the files that are not fresh and return their names. Raises KitError where one can't be written."""
    try:
        stale = [name for name in sorted(files) if diff(root, {name: files[name]})]
        for name in stale:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name], encoding="utf-8", newline="\n")
    except OSError as error:
        raise KitError(f"{error.filename}: this can't be written: {error.strerror}; choose another folder.") from None
    return stale


def root() -> Path:
    """Return the folder that deploy/ and docs/ lie in."""
    return assets.path("deploy").parent
