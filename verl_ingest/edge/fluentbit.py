"""Settings -> fluent-bit.yaml. Pure: what varies by cluster is computed here, the text is the template's."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_ingest import assets
from verl_ingest.index.mappings import RECORDS_PREFIX, SAMPLES_PREFIX
from verl_ingest.normalise.lua_settings import LINE_BYTES
from verl_ingest.settings import Settings

TEMPLATE = "fluent-bit.yaml.j2"
RECORDS, SAMPLES = "verl.records", "verl.samples"  # tags; which of them a file has depends on its family alone
FORWARD = "forward"  # the input behind the tails
PREFIXES = {RECORDS: RECORDS_PREFIX, SAMPLES: SAMPLES_PREFIX}  # of the daily indices that a tag's documents go to

_COMMENTS = {
    "rank": "Rank logs.",
    "file_logger": "verl's file logger.",
    "console": "Consoles.",
    "rollout": "Rollout and validation dumps: samples, in indices of their own.",
    "ray": "Ray's worker files.",
}


def render(settings: Settings, *, run: str | None = None) -> str:
    """Return the text of fluent-bit.yaml, for every run or for the agents of a `run`, which end with it."""
    return assets.template(TEMPLATE).render(context(settings, run=run))


def context(settings: Settings, *, run: str | None = None) -> dict[str, Any]:
    """Return the template's variables."""
    url = urlsplit(settings.elasticsearch_url)
    tls = url.scheme == "https"
    return {
        "agent": settings.agent,
        "secret_file": settings.agent.secret_file,
        "username": settings.agent.username,
        "ca_certs": settings.elasticsearch_ca_certs,
        "line_bytes": LINE_BYTES,
        "inputs": inputs(settings, run=run),
        "run": run,
        "outputs": [
            {
                "alias": output_of(tag),
                "match": tag,
                "prefix": prefix.removesuffix("-"),
                "buffer": settings.agent.buffer_limit,
            }
            for tag, prefix in PREFIXES.items()
        ],
        "server": {"host": url.hostname, "port": url.port or (443 if tls else 80), "path": url.path, "tls": tls},
    }


def output_of(tag: str) -> str:
    """Return the alias of the output that takes a tag."""
    return tag.removeprefix("verl.")


def buffer_bytes(settings: Settings) -> int:
    """Return how many bytes may wait for each output, counted as Fluent Bit does: 5G are 5,000,000,000."""
    limit = settings.agent.buffer_limit
    return int(limit[:-1]) * {"K": 1_000, "M": 1_000_000, "G": 1_000_000_000}[limit[-1]]


def rejected_folder(settings: Settings) -> Path:
    """Return where an agent keeps the chunks that it gave up."""
    return Path(settings.agent.state, "rejected")


def inputs(settings: Settings, *, run: str | None = None) -> list[dict[str, str]]:
    """Return the tail inputs in their order: family, comment, tag, and paths, separated by commas."""
    families = {family: getattr(settings.paths, family) for family in type(settings.paths).model_fields}
    return [
        {
            "family": family,
            "comment": _COMMENTS[family],
            "tag": SAMPLES if family == "rollout" else RECORDS,
            "path": ",".join(path.replace("{run}", run or "*") for path in paths),
        }
        for family, paths in families.items()
        if paths
    ]
