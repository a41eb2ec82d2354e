"""All checks, group by group; what can't be looked at is said, and the rest looked at."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from verl_ingest.checks import agents, assets, links, records, server
from verl_ingest.checks.check import Check, Verdict, answered
from verl_ingest.settings import Settings


@dataclass(frozen=True)
class Group:
    """The checks of one matter."""

    name: str
    checks: Sequence[Check]


@dataclass(frozen=True)
class Examined:
    """What all groups found, those first that others rest on."""

    groups: Sequence[Group]

    @property
    def checks(self) -> list[Check]:
        """All checks in order."""
        return [check for group in self.groups for check in group.checks]

    def count(self, verdict: Verdict) -> int:
        """Return how many checks have a verdict."""
        return sum(check.verdict == verdict for check in self.checks)

    @property
    def first(self) -> str:
        """Say what to do first: the remedy of the first wrong thing, else of the first to watch, else to look at."""
        for verdict in ("wrong", "watch", "unknown"):
            for check in self.checks:
                if check.verdict == verdict:
                    what = check.remedy or check.found.rstrip(".")
                    return f"First {check.name}: {what}."
        return "All is well: nothing to do."

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "well": not self.count("wrong"),
            "first": self.first,
            "groups": [asdict(group) for group in self.groups],
        }


def examine(settings: Settings) -> Examined:
    """Look at everything; nothing is raised for what is wrong or does not answer."""
    of_server = Group("Elasticsearch", list(server.check(settings)))
    usable = not any(check.name == server.NAME and check.verdict == "wrong" for check in of_server.checks)

    def asked_of_server(name: str, look: Callable[[Settings], Iterator[Check]]) -> Iterator[Check]:
        if usable:
            return answered(name, partial(look, settings))
        return iter([Check(name, "unknown", "Not looked at: Elasticsearch can't be used.")])

    look_at_records = partial(records.check, now=round(time.time() * 1_000))
    return Examined(
        [
            of_server,
            Group("what apply brings", list(asked_of_server(assets.NAME, assets.check))),
            Group("agent of this machine", list(agents.check(settings))),
            Group("records of the last day", list(asked_of_server(records.NAME, look_at_records))),
            Group("pages and dashboards", list(links.check(settings))),
        ]
    )
