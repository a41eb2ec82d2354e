"""The index in which the kit keeps what it must remember itself: pins. Outside of the patterns of what is searched."""

from verl_ingest.index.mappings import PRIORITY, Template, signed

INDEX = "verl_kit_state"
TEMPLATE = "verl-kit-state"
_SOURCE = "Rendered from verl_ingest/index/state.py by `verl-ingest render`; edit that."


def template() -> Template:
    """Return its template; a document says its `kind`, and may have more fields than those that are searched."""
    body = {
        "index_patterns": [f"{INDEX}*"],
        "priority": PRIORITY,
        "composed_of": [],
        "template": {
            "settings": {"index.auto_expand_replicas": "0-1"},
            "mappings": {
                "dynamic": False,
                "properties": {
                    "@timestamp": {"type": "date"},
                    "kind": {"type": "keyword"},
                    "run_id": {"type": "keyword"},
                },
            },
        },
    }
    return Template("index_template", TEMPLATE, signed(body, source=_SOURCE))
