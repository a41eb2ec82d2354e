"""Bring the server's templates to the kit's: compare first, then write what differs, never over a stranger's work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

from elasticsearch import AuthorizationException, Elasticsearch, NotFoundError, UnsupportedProductError

from verl_ingest import __version__, changes, differences
from verl_ingest.catalog import fields, metrics
from verl_ingest.changes import Row
from verl_ingest.errors import StoreError
from verl_ingest.index import lifecycle, roles, state
from verl_ingest.index.client import is_elasticsearch
from verl_ingest.index.existing import properties_of
from verl_ingest.index.mappings import (
    ALL_PATTERN,
    INDEX_TEMPLATE,
    KIT_COMPONENT,
    RECORDS_PREFIX,
    SAMPLES_PREFIX,
    Template,
    templates,
)
from verl_ingest.settings import Settings

# What the server adds to a template by itself (9.2 and later).
_SERVERS_OWN = ("created_date", "created_date_millis", "modified_date", "modified_date_millis")


@dataclass(frozen=True)
class Kind:
    """What the kit keeps in Elasticsearch of one kind.

    `read` returns the bodies of all that are there by name, in the form in which the kit writes them, `_meta` among
    their keys; `write` puts one body under a name.
    """

    words: str
    read: Callable[[Elasticsearch], dict[str, dict[str, Any]]]
    write: Callable[[Elasticsearch, str, Mapping[str, Any]], object]


def _component_templates(client: Elasticsearch, name: str | None = None) -> dict[str, dict[str, Any]]:
    answer = client.cluster.get_component_template(name=name, flat_settings=True)
    return _bodies(answer["component_templates"], "component_template")


def _index_templates(client: Elasticsearch, name: str | None = None) -> dict[str, dict[str, Any]]:
    answer = client.indices.get_index_template(name=name, flat_settings=True)
    return _bodies(answer["index_templates"], "index_template")


def _bodies(items: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {
        item["name"]: {name: value for name, value in item[key].items() if name not in _SERVERS_OWN} for item in items
    }


# Whatever the kit keeps in Elasticsearch; a list of assets is written in its own order.
KINDS = {
    "ilm_policy": Kind("ILM policy", lambda client: lifecycle.read(client) or {}, lifecycle.write),
    "component_template": Kind(
        "component template",
        _component_templates,
        lambda client, name, body: client.cluster.put_component_template(name=name, body=body),
    ),
    "index_template": Kind(
        "index template",
        _index_templates,
        lambda client, name, body: client.indices.put_index_template(name=name, body=body),
    ),
    "role": Kind("role", roles.read, roles.write),
}


def wanted(settings: Settings) -> list[Template]:
    """Return the templates of both catalogues and of the kit's state, and what makes the server merge old indices."""
    names = metrics.load().explicit_names()
    of_catalogues = templates(fields.load(), names, documents_per_day=settings.expected_documents_per_day)
    return [*lifecycle.assets(), *of_catalogues, state.template()]


def compare(client: Elasticsearch, templates: Sequence[Template], *, overwrite: bool = False) -> list[Row]:
    """Return how each template stands on the server; with `overwrite` a stranger's change counts as the kit's own.

    What the server has no module for is left out. Raises StoreError when an index template of other origin claims the
    kit's indices.
    """
    templates = lifecycle.supported(client, templates)
    found = {kind: KINDS[kind].read(client) for kind in dict.fromkeys(template.kind for template in templates)}
    _check_rivals(templates, found.get("index_template", {}))
    return [
        changes.compare(
            f"{KINDS[template.kind].words} {template.name}",
            template,
            wanted=template.body,
            found=found[template.kind].get(template.name),
            overwrite=overwrite,
        )
        for template in templates
    ]


def write(client: Elasticsearch, rows: Sequence[Row]) -> None:
    """Write what is to be created or updated, in its order."""
    for row in rows:
        if row.is_to_be_written:
            KINDS[row.asset.kind].write(client, row.asset.name, row.asset.body)


def require(client: Elasticsearch, template: str = INDEX_TEMPLATE) -> None:
    """Raise StoreError where `apply` has not been run: without its template a first record would shape an index."""
    try:
        ready = client.indices.exists_index_template(name=template)
    except AuthorizationException:  # who may only write may not look; whoever set up that role has applied too
        return
    if not is_elasticsearch(ready.meta):  # its answer to HEAD is a 404 like any other's
        raise UnsupportedProductError("not Elasticsearch", meta=ready.meta, body=None)
    if not ready:
        raise StoreError("Elasticsearch is not prepared for the logs yet; run `verl-ingest apply` first.")


def stale(client: Elasticsearch, settings: Settings) -> str:
    """Return a sentence on templates that an older kit wrote; an empty text where there are none or they can't be seen.

    What other settings made different is no matter of age.
    """
    try:
        components = _component_templates(client, KIT_COMPONENT)
        bodies = {"component_template": components, "index_template": _index_templates(client, f"{INDEX_TEMPLATE}*")}
    except (AuthorizationException, NotFoundError):  # who may only write may not look
        return ""
    found = [Template(kind, name, body) for kind, of_kind in bodies.items() for name, body in of_kind.items()]
    own = wanted(settings)
    lacking = set()
    for index in (RECORDS_PREFIX, SAMPLES_PREFIX):
        lacking |= properties_of(index, own).keys() - properties_of(index, found).keys()
    version = components[KIT_COMPONENT].get("_meta", {}).get("version", "")
    is_older = changes.is_older(version, __version__)
    if not (lacking or is_older):
        return ""
    whose = f" are of {changes.MANAGED_BY} {version} (this is {__version__})" if is_older else ""
    names = f"{differences.counted(lacking)} ({differences.named(sorted(lacking))})"
    what = f" lack {names}, by which what is loaded now can't be searched" if lacking else ""
    return f"The server's index templates{' and'.join(filter(None, (whose, what)))}; run `verl-ingest apply`."


def misshapen(client: Elasticsearch) -> list[str]:
    """Return the indices whose runs can't be searched: a first record shaped them before the templates were there."""
    try:
        found = client.indices.get_field_mapping(index=ALL_PATTERN, fields="run_id")
    except (AuthorizationException, NotFoundError):  # who may only write templates; there is no index yet
        return []
    return sorted(name for name, index in found.items() if _type_of(index["mappings"]) not in (None, "keyword"))


def _type_of(mappings: Mapping[str, Any]) -> str | None:
    return mappings["run_id"]["mapping"]["run_id"]["type"] if mappings else None


def _check_rivals(templates: Sequence[Template], found: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to go on where the server would not take our template for our indices, or would not take it at all.

    `found` are the server's index templates by name.
    """
    own = {template.name for template in templates}
    others = {name: body for name, body in found.items() if name not in own}
    for template in templates:
        if template.kind != "index_template":
            continue
        (pattern,), priority = template.body["index_patterns"], template.body["priority"]
        for name, other in others.items():
            claim = _claim(other, pattern, priority)
            if claim is not None:
                raise StoreError(
                    f"The server's index template {name} ({claim}, priority {other['priority']}) claims the same "
                    f"indices as the kit's {template.name} ({pattern}, priority {priority}); narrow its pattern, "
                    f"lower its priority below {priority}, or delete it."
                )


def _claim(other: Mapping[str, Any], pattern: str, priority: int) -> str | None:
    """Return the pattern of another template that takes indices from ours, None where there is none.

    With a higher priority it wins where it matches; the server refuses ours where the same priority could match both.
    """
    today = pattern.replace("*", datetime.now(timezone.utc).strftime("%Y.%m.%d"))
    for claim in other["index_patterns"]:
        level = other.get("priority", 0)
        if (level == priority and _overlaps(claim, pattern)) or (level > priority and fnmatchcase(today, claim)):
            return claim
    return None


def _overlaps(pattern: str, ours: str) -> bool:
    """Tell whether some name matches both patterns; `ours` ends in its only star."""
    head, star, _ = pattern.partition("*")
    prefix = ours.removesuffix("*")
    return head.startswith(prefix) or bool(star and prefix.startswith(head))
