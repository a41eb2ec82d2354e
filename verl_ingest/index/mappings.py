"""Field and metric catalogue -> component and index templates (deploy/elasticsearch/*.json). Pure: meets no server.

Nothing a line can hold makes a document refused: the top level is closed, only `metrics` grows, every metric is a
double from the first document, and what does not fit a field is kept in _source and named in _ignored.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from verl_ingest import changes
from verl_ingest.catalog.fields import Field, Fields

# A daily index is a prefix and the day of the event in UTC, YYYY.MM.DD.
RECORDS_PREFIX = "verl-"
SAMPLES_PREFIX = "verl-samples-"
# Step summaries, outside of the patterns: what is in the records must not count twice.
STEPS_INDEX = "verl_steps"
STEPS_PATTERN = "verl_steps*"
# What to search.
ALL_PATTERN = "verl-*"
SAMPLES_PATTERN = "verl-samples-*"
RECORDS_PATTERN = "verl-*,-verl-samples-*"
# Whatever is the kit's, its own state too.
EVERY_PATTERN = "verl-*,verl_*"

INDEX_TEMPLATE = "verl"
STEPS_TEMPLATE = "verl-steps"
KIT_COMPONENT = "verl@kit"
LIFECYCLE_COMPONENT = "verl@lifecycle"  # only where the server has ILM: see lifecycle.py
CUSTOM_COMPONENT = "verl@custom"
PRIORITY = 200

DOCUMENTS_PER_SHARD = 500_000_000
FIELD_LIMIT = 8_000
# A term holds at most 32,766 bytes, a UTF-16 unit at most 3 of them; the rest is for the key in front of it in `extra`.
LONGEST_KEYWORD = 8_191
DEEPEST_EXTRA = 20

METRIC = {"type": "double", "index": False}
_SOURCE = "Rendered from fields.yml and metrics.yml by `verl-ingest render`; edit those."
# Numbers that a search may have nothing but.
RANGED = ("step", "global_step")


@dataclass(frozen=True)
class Template:
    """One template of the server: `kind` is component_template or index_template."""

    kind: str
    name: str
    body: dict[str, Any]

    @property
    def path(self) -> str:
        """Where the default rendering lies in the repository."""
        return f"deploy/elasticsearch/{self.kind.replace('_', '-')}-{self.name}.json"


def templates(fields: Fields, metric_names: Iterable[str], *, documents_per_day: int) -> list[Template]:
    """Return the templates in the order they must be written."""
    kit = {
        "template": {
            "settings": settings(fields, documents_per_day=documents_per_day),
            "mappings": {
                "dynamic": False,
                "date_detection": False,
                "dynamic_templates": [{"metrics": {"path_match": "metrics.*", "mapping": METRIC}}],
                "properties": properties(fields, None)
                | {
                    "metrics": {
                        "type": "object",
                        "dynamic": True,
                        "subobjects": False,
                        "properties": dict.fromkeys(sorted(metric_names), METRIC),
                    }
                },
            },
        }
    }
    return [
        Template("component_template", KIT_COMPONENT, signed(kit)),
        _index_template(INDEX_TEMPLATE, RECORDS_PREFIX, PRIORITY, properties(fields, "records")),
        _index_template("verl-samples", SAMPLES_PREFIX, PRIORITY + 1, properties(fields, "samples")),
        _index_template(STEPS_TEMPLATE, STEPS_INDEX, PRIORITY, properties(fields, "steps"), daily=False),
    ]


def settings(fields: Fields, *, documents_per_day: int) -> dict[str, Any]:
    """Return the index settings in the server's own form: flat names, texts."""
    searched = [field.name for field in fields.fields if field.type in ("keyword", "text") and _is_indexed(field)]
    return {
        "index.mode": "logsdb",
        # Synthetic sources need a paid licence and give documents back in another shape (host.name as an object);
        # left to the server, the answers would depend on its licence.
        "index.mapping.source.mode": "stored",
        # A step lies together; beyond that, like lines beside each other compress best.
        "index.sort.field": ["run_id", "step", "stage", "rank"],
        "index.number_of_shards": str(math.ceil(documents_per_day / DOCUMENTS_PER_SHARD)),
        "index.auto_expand_replicas": "0-1",
        "index.mapping.total_fields.limit": str(FIELD_LIMIT),
        "index.mapping.total_fields.ignore_dynamic_beyond_limit": "true",
        "index.mapping.ignore_malformed": "true",
        "index.mapping.ignore_above": str(LONGEST_KEYWORD),
        # A search without a field name would else try thousands of metrics.
        "index.query.default_field": searched,
    }


def properties(fields: Fields, index: str | None) -> dict[str, Any]:
    """Return the mapping of the fields that `index` alone carries; None: those that records and samples carry."""
    return {field.name: _mapping(field) for field in fields.fields if field.index == index and field.name != "metrics"}


def signed(body: dict[str, Any], *, source: str = _SOURCE) -> dict[str, Any]:
    """Add `_meta`: who wrote the template, where it comes from, and a hash by which a later change by hand is seen."""
    return body | {"_meta": changes.mark(body) | {"source": source}}


def _index_template(name: str, prefix: str, priority: int, own: dict[str, Any], *, daily: bool = True) -> Template:
    # The operator's last: an ILM policy of their own wins too.
    optional = [*([LIFECYCLE_COMPONENT] if daily else []), CUSTOM_COMPONENT]
    body = {
        "index_patterns": [f"{prefix}*"],
        "priority": priority,
        "composed_of": [KIT_COMPONENT, *optional],
        "ignore_missing_component_templates": optional,
        "template": {"mappings": {"properties": own}},
    }
    return Template("index_template", name, signed(body))


def _mapping(field: Field) -> dict[str, Any]:
    if field.type == "alias":
        return {"type": "alias", "path": field.path}
    by_type = {} if field.name in RANGED else _TYPE_DEFAULTS.get(field.type, {})
    return {"type": field.type} | by_type | dict(field.mapping or {})


def _is_indexed(field: Field) -> bool:
    return (field.mapping or {}).get("index", True)


# A search names a run, a step or a time first; other numbers are then read from their columns, at no cost in space.
_TYPE_DEFAULTS = {
    "text": {"norms": False},  # relevance by length of a log line is worth nothing
    "double": {"index": False},
    "integer": {"index": False},
    "long": {"index": False},
    "flattened": {"depth_limit": DEEPEST_EXTRA},
}
