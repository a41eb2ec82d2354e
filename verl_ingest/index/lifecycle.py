"""Index lifecycle management (ILM) of daily indices, where the server has it: old ones are merged, none is deleted.

An age decides, nothing else: a daily index gets its records by its name, so it never rolls over. It is never closed to
writing, since late lines and repairs must get in. Deleting is `verl-ingest retention`, which knows the pinned runs.
"""

from collections.abc import Sequence
from typing import Any

from elasticsearch import ApiError, Elasticsearch, NotFoundError

from verl_ingest.index.mappings import LIFECYCLE_COMPONENT, Template, signed

POLICY = "verl"
# From an index's first record on: its day is over by then, wherever its hosts' clocks are.
MERGED_AFTER = "2d"
_SOURCE = "Rendered from verl_ingest/index/lifecycle.py by `verl-ingest render`; edit that."


def assets() -> list[Template]:
    """Return the policy, and the component template by which the daily indices have it."""
    component = {"template": {"settings": {"index.lifecycle.name": POLICY}}}
    return [
        Template("ilm_policy", POLICY, signed(policy(), source=_SOURCE)),
        Template("component_template", LIFECYCLE_COMPONENT, signed(component, source=_SOURCE)),
    ]


def policy() -> dict[str, Any]:
    """Return the policy in the server's own form; since 8.9 at the latest, what is merged can still be written to."""
    return {
        "phases": {
            "hot": {"min_age": "0ms", "actions": {}},
            "warm": {"min_age": MERGED_AFTER, "actions": {"forcemerge": {"max_num_segments": 1}}},
        }
    }


def supported(client: Elasticsearch, templates: Sequence[Template]) -> list[Template]:
    """Return the templates without those that a server without ILM would refuse."""
    if read(client) is not None:
        return list(templates)
    refused = {template.path for template in assets()}
    return [template for template in templates if template.path not in refused]


def read(client: Elasticsearch) -> dict[str, dict[str, Any]] | None:
    """Return the body of the kit's policy by its name, {} where it is not there, None where the server has no ILM."""
    try:
        found = client.ilm.get_lifecycle(name=POLICY)
    except NotFoundError:
        return {}
    except ApiError as error:
        if error.status_code in (400, 405):  # no such request: it was built without the module
            return None
        raise
    return {name: item["policy"] for name, item in found.items()}


def write(client: Elasticsearch, name: str, body: dict[str, Any]) -> None:
    """Put the policy under a name."""
    client.ilm.put_lifecycle(name=name, policy=body)
