"""The agent's folder: its configuration, the normaliser's settings, and the Lua files beside them (all flat)."""

from pathlib import Path

from verl_ingest import assets
from verl_ingest.edge import fluentbit
from verl_ingest.errors import SettingsError
from verl_ingest.normalise import lua_settings
from verl_ingest.settings import Settings


def files(settings: Settings, *, run: str | None = None) -> dict[str, str]:
    """Return name -> text of every file that an agent needs, rendered for these settings; `run` as in fluentbit."""
    lua = {path.name: path.read_text(encoding="utf-8") for path in assets.path("deploy/fluent-bit").glob("*.lua")}
    return lua | {"fluent-bit.yaml": fluentbit.render(settings, run=run), "settings.lua": lua_settings.render(settings)}


def certificate(path: Path) -> str:
    """Return the text of `elasticsearch_ca_certs`, for nodes that have no such file; else raise SettingsError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no PEM file"
        raise SettingsError(f"elasticsearch_ca_certs: {path} can't be read: {why}.") from None
