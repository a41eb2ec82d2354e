"""Catalogues and settings -> saved objects, in the oldest shape that Kibana 8.19 and 9.x import (they upgrade it).

Each carries the kit's mark in its description, since Kibana keeps no other text of ours: a saved search in its own, the
data view in that of its field step_key.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from verl_ingest import changes
from verl_ingest.catalog import fields, metrics
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.kibana.searches import SEARCHES, Search
from verl_ingest.links import kibana
from verl_ingest.settings import Settings

SavedObject = Mapping[str, Any]

DATA_VIEW_TYPE = "index-pattern"
SEARCH_TYPE = "search"
NAMES = {DATA_VIEW_TYPE: "data view", SEARCH_TYPE: "saved search"}

_LINK = "step_key"
_REFERENCE = "kibanaSavedObjectMeta.searchSourceJSON.index"
_LONGEST_DESCRIPTION = 300  # of a field; Kibana's own editor takes no more
_WHOLE = {"id": "number", "params": {"pattern": "0"}}  # 4105, where Kibana would write 4,105
_EXACT = {"id": "string"}  # as it was logged; Kibana would round 0.00042 to 0
_MARK = re.compile(rf" ?\({changes.MANAGED_BY} (?P<version>\S+), (?P<content>[0-9a-f]{{16}})\)$")


def objects(settings: Settings) -> list[SavedObject]:
    """Return the data view and the saved searches; the view comes first, since the searches refer to it."""
    return [_marked(partial(_data_view, settings.service_url)), *(_marked(partial(_search, item)) for item in SEARCHES)]


def ndjson(objects: Iterable[SavedObject]) -> str:
    """Write saved objects as Kibana imports them: one in a line."""
    return "".join(f"{json.dumps(item, ensure_ascii=False, sort_keys=True)}\n" for item in objects)


def content(found: SavedObject) -> dict[str, Any]:
    """Return what a saved object says, in the same form whichever version of Kibana gives it back.

    What Kibana adds by itself, and what users do in passing (how popular a field is), is left out. `_meta` is read from
    the kit's mark; it is empty where there is none.
    """
    attributes = found["attributes"]
    description, rest = (_of_data_view if found["type"] == DATA_VIEW_TYPE else _of_search)(attributes)
    mark = _MARK.search(description)
    meta = {"managed_by": changes.MANAGED_BY, **mark.groupdict()} if mark else {}
    references = sorted(f"{reference['type']} {reference['id']}" for reference in found["references"])
    own = {"title": attributes["title"], "description": _MARK.sub("", description), "references": references}
    return own | rest | {"_meta": meta}


def _of_data_view(attributes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text that has the mark, and the rest of the content."""
    fields = json.loads(attributes.get("fieldAttrs") or "{}")
    descriptions = {name: text for name, field in fields.items() if (text := field.get("customDescription"))}
    return descriptions.pop(_LINK, ""), {
        "name": attributes.get("name"),
        "time field": attributes.get("timeFieldName"),
        "without indices": attributes.get("allowNoIndex", False),
        "field formats": json.loads(attributes.get("fieldFormatMap") or "{}"),
        "field descriptions": descriptions,
        "field names": {name: label for name, field in fields.items() if (label := field.get("customLabel"))},
        "runtime fields": json.loads(attributes.get("runtimeFieldMap") or "{}"),
        "hidden fields": json.loads(attributes.get("sourceFilters") or "[]"),
    }


def _of_search(attributes: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text that has the mark, and the rest of the content; newer versions keep it in the first of `tabs`."""
    table = next((tab["attributes"] for tab in attributes.get("tabs", ())), attributes)
    source = json.loads(table["kibanaSavedObjectMeta"]["searchSourceJSON"])
    return attributes.get("description", ""), {
        "query": source.get("query"),
        "filter": source.get("filter"),
        "columns": table.get("columns"),
        "sort": table.get("sort"),
        "tabs": max(1, len(attributes.get("tabs", ()))),
    }


def _marked(build: Callable[[str], SavedObject]) -> SavedObject:
    """Build an object with the mark, which has the hash of what it is without."""
    meta = changes.mark(content(build("")))
    return build(f" ({changes.MANAGED_BY} {meta['version']}, {meta['content']})")


def _data_view(service_url: str | None, mark: str) -> SavedObject:
    shown = [field for field in fields.load().fields if field.index != "steps"]
    descriptions = {field.name: {"customDescription": field.short[:_LONGEST_DESCRIPTION]} for field in shown}
    descriptions[_LINK]["customDescription"] += mark
    attributes = {
        "title": ALL_PATTERN,
        "name": kibana.DATA_VIEW,
        "timeFieldName": "@timestamp",
        "allowNoIndex": True,  # so that it can be there before the first load
        "fields": "[]",
        "fieldAttrs": _text(descriptions),
        "fieldFormatMap": _text(_formats(service_url)),
        "runtimeFieldMap": "{}",
        "sourceFilters": "[]",
    }
    return _saved(DATA_VIEW_TYPE, kibana.DATA_VIEW, attributes)


def _formats(service_url: str | None) -> dict[str, Any]:
    """Return how Kibana writes the values of fields: numbers as they are, step_key as a link to the step's page."""
    catalogue = fields.load()
    by_type = {"long": _WHOLE, "integer": _WHOLE, "double": _EXACT}
    types = {field.name: catalogue.by_name[field.path or field.name].type for field in catalogue.fields}
    numbers = {name: by_type[kind] for name, kind in types.items() if kind in by_type}
    known_metrics = {f"metrics.{name}": _EXACT for name in metrics.load().explicit_names()}
    if not service_url:
        return numbers | known_metrics
    link = {"type": "a", "urlTemplate": kibana.page_of_step_key(service_url), "labelTemplate": "{{value}}"}
    return numbers | known_metrics | {_LINK: {"id": "url", "params": link}}


def _search(search: Search, mark: str) -> SavedObject:
    source = {
        "query": {"language": "kuery", "query": search.query},
        "filter": [],
        "indexRefName": _REFERENCE,
    }
    attributes = {
        "title": search.title,
        "description": search.description + mark,
        "columns": list(search.columns),
        "sort": [list(order) for order in search.sort],
        "grid": {},
        "hideChart": False,
        "isTextBasedQuery": False,
        "kibanaSavedObjectMeta": {"searchSourceJSON": _text(source)},
    }
    view = {"type": DATA_VIEW_TYPE, "id": kibana.DATA_VIEW, "name": _REFERENCE}
    return _saved(SEARCH_TYPE, search.id, attributes, view)


def _saved(kind: str, identity: str, attributes: Mapping[str, Any], *references: Mapping[str, str]) -> SavedObject:
    """Return a saved object as of Kibana 8.8, which the same major and the next one take and upgrade."""
    return {
        "id": identity,
        "type": kind,
        "attributes": attributes,
        "references": list(references),
        "coreMigrationVersion": "8.8.0",
        "typeMigrationVersion": "8.0.0",
        "managed": False,
    }


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
