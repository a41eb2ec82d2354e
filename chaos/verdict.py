"""What became of a run: its lines against its documents, and against what the audit says of them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from elasticsearch import helpers

from chaos import ledger
from chaos.scene import Scenario, Scene
from verl_ingest.audit import pipeline
from verl_ingest.audit.balance import Report
from verl_ingest.audit.store import ElasticStore
from verl_ingest.index.mappings import ALL_PATTERN
from verl_ingest.load import files
from verl_ingest.load.shipper import Shipper
from verl_ingest.normalise.lua import Normaliser

Place = tuple[Path, int]  # a file, and the byte offset of a line in it


@dataclass
class _Stored:
    """A run's documents: where each line's stand (id and index), how many hold something else, ids of the others."""

    places: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    wrong: int = 0
    no_lines: int = 0

    @property
    def documents(self) -> int:
        return sum(map(len, self.places.values())) + self.no_lines

    @property
    def twice(self) -> int:
        return sum(len(places) > 1 for places in self.places.values())


@dataclass(frozen=True)
class Verdict:
    """The figures of one scenario, and what is wrong with them.

    documents: before the repair; missing: lines that are in a file and not in the store; named: what the audit calls
    missing; left: what is missing after one repair; twice: lines under two ids or in two indices; wrong: documents
    that hold something else than their line; no_lines: documents that are no line; gone: lines that never arrived and
    are in no file any more.
    """

    scenario: Scenario
    done: str
    lines: int
    documents: int
    missing: int
    named: int
    left: int
    twice: int
    wrong: int
    no_lines: int
    gone: int
    failures: tuple[str, ...]

    @property
    def why(self) -> str:
        """The known reasons of what was lost."""
        reasons = [self.scenario.may_lose] if self.missing or self.no_lines else []
        reasons += [self.scenario.may_be_gone] if self.gone else []
        return "; ".join(reasons)


def of(scene: Scene) -> Verdict:
    """Count, audit, repair once, count again."""
    scene.settle()
    scenario, written = scene.scenario, scene.ledger.written
    before, places = _stored(scene), dict(_places(scene.folder))
    in_files = set(places.values())
    missing = {number for number in in_files if number not in before.places}
    gone = len(written.keys() - before.places.keys() - in_files)
    named = _named(_audit(scene))
    _audit(scene, repair=True)
    after = _stored(scene)
    left = sum(number not in after.places for number in in_files)
    repaired = {event_id for number in missing for event_id, _ in after.places[number]}
    checks = {
        "what the audit names is not what is missing": {places.get(place) for place in named} == missing,
        "lines are missing after the repair": left == 0,
        "lines are stored twice": before.twice == after.twice == 0,
        "documents differ from their lines": before.wrong == after.wrong == 0,
        "lines that are in a file did not arrive": not missing or bool(scenario.may_lose),
        "documents hold pieces of lines": before.no_lines == 0 or bool(scenario.may_lose),
        "lines that are in no file any more did not arrive": gone == 0 or bool(scenario.may_be_gone),
        "other lines are missing than those that were refused": not scene.refusals.withheld
        or scene.refusals.lost == repaired,
    }
    return Verdict(
        scenario=scenario,
        done=", ".join(f"{what} {times:,}" for what, times in scene.done.items() if times),
        lines=len(written),
        documents=before.documents,
        missing=len(missing),
        named=len(named),
        left=left,
        twice=after.twice,
        wrong=after.wrong,
        no_lines=after.no_lines,
        gone=gone,
        failures=tuple(what for what, is_met in checks.items() if not is_met),
    )


def _stored(scene: Scene) -> _Stored:
    client = scene.server.client
    client.indices.refresh(index=ALL_PATTERN)
    found = _Stored()
    query = {"query": {"term": {"run_id": scene.run_id}}}
    for hit in helpers.scan(client, index=ALL_PATTERN, query=query, size=5_000):
        source: dict[str, Any] = hit["_source"]
        number = source.get("step")
        rank = scene.ledger.written.get(number)
        if rank is None:
            found.no_lines += 1
            continue
        found.places[number].append((hit["_id"], hit["_index"]))
        wanted = ledger.document(number, rank)
        found.wrong += {name: source.get(name) for name in wanted} != wanted
    return found


def _places(folder: Path) -> Iterator[tuple[Place, int]]:
    """Yield where each line stands in the files that there are, and its number."""
    for path in folder.iterdir():
        offset = 0
        with path.open("rb") as lines:
            for line in lines:
                yield (path, offset), orjson.loads(line)["step"]
                offset += len(line)


def _audit(scene: Scene, *, repair: bool = False) -> Report:
    client = scene.server.client
    found = files.discover([scene.folder], Normaliser(scene.settings))
    shipper = Shipper(client) if repair else None
    return pipeline.audit(found.logs, ElasticStore(client), scene.settings, shipper=shipper)


def _named(report: Report) -> set[Place]:
    return {(file.log.path, offset) for file in report.files for offset in file.missing_offsets}
