"""Indices that are there when `apply` brings new templates: they get the fields that they lack, and keep all else.

A template counts only for indices that are made after it. Without this the new fields of today's records would not be
searchable, as a field that the mapping does not name is kept and not indexed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from elasticsearch import ApiError, Elasticsearch

from verl_ingest import differences
from verl_ingest.changes import Row
from verl_ingest.index.mappings import EVERY_PATTERN, Template

# Thousands of metrics a day: the templates map a new one by itself, as soon as a record has it.
_NO_METRICS = "-*.mappings.properties.metrics.properties"


@dataclass(frozen=True)
class Addition:
    """Fields that some indices lack: `properties` is their mapping by name."""

    indices: tuple[str, ...]
    properties: Mapping[str, Any]


def properties_of(index: str, templates: Sequence[Template]) -> dict[str, Any]:
    """Return the mapping of the fields that an index of this name gets from templates."""
    components = {template.name: template.body for template in templates if template.kind == "component_template"}
    claims = [
        template.body
        for template in templates
        if template.kind == "index_template" and any(fnmatchcase(index, one) for one in template.body["index_patterns"])
    ]
    if not claims:
        return {}
    own = max(claims, key=lambda body: body.get("priority", 0))
    parts = [*(components[name] for name in own.get("composed_of", ()) if name in components), own]
    return {name: field for part in parts for name, field in _declared(part).items()}


def compare(client: Elasticsearch, templates: Sequence[Template]) -> list[Row]:
    """Return a row for all indices that lack the same fields, and one for those that have a field as another type.

    An index that the kit's templates have not made is left out: `apply.misshapen` names it.
    """
    answer = client.indices.get_mapping(index=EVERY_PATTERN, filter_path=f"*.mappings.properties,{_NO_METRICS}")
    lacking: dict[tuple[str, ...], list[str]] = {}
    other: dict[tuple[str, ...], list[str]] = {}
    mappings = {index: properties_of(index, templates) for index in sorted(answer)}
    for index, wanted in mappings.items():
        found = dict(_types(answer[index]["mappings"]["properties"]))
        if found.get("run_id") == _type(wanted.get("run_id", {})):
            lacking.setdefault(tuple(sorted(wanted.keys() - found.keys())), []).append(index)
            strange = [
                f"{name} ({found[name]})"
                for name in wanted
                if found.get(name, _type(wanted[name])) != _type(wanted[name])
            ]
            other.setdefault(tuple(strange), []).append(index)
    return [
        *(_lacks(names, indices, mappings[indices[0]]) for names, indices in lacking.items() if names),
        *(_keeps(names, indices) for names, indices in other.items() if names),
    ]


def write(client: Elasticsearch, rows: Sequence[Row]) -> dict[str, ApiError]:
    """Give the indices what they lack; returns the indices that did not take it, with what the server says."""
    refused = {}
    for row in rows:
        if row.is_to_be_written:
            for index in row.asset.indices:
                try:
                    client.indices.put_mapping(index=index, properties=row.asset.properties)
                except ApiError as error:
                    refused[index] = error
    return refused


def _lacks(names: Sequence[str], indices: Sequence[str], wanted: Mapping[str, Any]) -> Row:
    addition = Addition(tuple(indices), {name: wanted[name] for name in names})
    return Row(_named(indices), addition, "updated", news=(differences.added(names, "in records from now on"),))


def _keeps(names: Sequence[str], indices: Sequence[str]) -> Row:
    return Row(_named(indices), None, "kept", f"another type in new indices: {differences.named(names)}")


def _named(indices: Sequence[str]) -> str:
    if len(indices) == 1:
        return f"existing index {indices[0]}"
    return f"{len(indices):,} existing indices ({differences.named(indices)})"


def _declared(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return body.get("template", {}).get("mappings", {}).get("properties", {})


def _types(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the full name and the type of each field of a mapping."""
    for name, mapping in properties.items():
        yield prefix + name, _type(mapping)
        yield from _types(mapping.get("properties", {}), f"{prefix}{name}.")


def _type(mapping: Mapping[str, Any]) -> str:
    return mapping.get("type", "object")
