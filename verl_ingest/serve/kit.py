"""What every page and answer of the service needs: the settings, the store, the catalogue."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Annotated, Any
from urllib.parse import urlsplit

from cachetools import TTLCache, cachedmethod
from fastapi import Depends, Query, Request

from verl_ingest.catalog.metrics import Catalogue
from verl_ingest.context import baseline, compare, curves, names, why
from verl_ingest.context.series import Series
from verl_ingest.context.why import Why
from verl_ingest.errors import NotFound
from verl_ingest.links import grafana, page
from verl_ingest.query.store import MOST_RANK, RunReader, Store
from verl_ingest.settings import Settings

WIDEST = 500  # steps
EXPLAINED = 64  # runs, the explanations of which are kept
EXPLAINED_S = 15.0  # readers who step through a run ask for the same one each time


class UnknownRun(NotFound):
    """There is no run of that name; `similar` are names that are like it."""

    def __init__(self, run_id: str, similar: list[str]) -> None:
        super().__init__(f"There is no run '{run_id}'" + (", but others are called alike." if similar else "."))
        self.similar = similar


@dataclass(frozen=True)
class Side:
    """Runs side by side: the metric of those that have it, what the configurations that were `printed` differ in.

    `problems` has a sentence on each run that lacks the metric, or is not there.
    """

    series: list[Series]
    printed: list[str]
    differences: list[dict[str, Any]]
    problems: list[str]


@dataclass(frozen=True)
class Kit:
    """What the service was started with; `store` is one client for all requests."""

    settings: Settings
    store: Store
    catalogue: Catalogue
    _explained: TTLCache[str, Why] = field(default_factory=lambda: TTLCache(EXPLAINED, EXPLAINED_S))
    _explaining: Condition = field(default_factory=Condition)

    @property
    def base(self) -> str:
        """The path that a proxy serves the pages under; empty where they are at the root."""
        return urlsplit(self.settings.service_url or "").path

    def now(self) -> int:
        """Return the time in ms since 1970."""
        return round(time.time() * 1_000)

    @contextmanager
    def open(self, run_id: str) -> Iterator[RunReader]:
        """Open the run of exactly that name; raises UnknownRun."""
        with ExitStack() as opened:
            try:
                run = opened.enter_context(self.store.open(run_id))
            except NotFound:
                raise UnknownRun(run_id, names.similar(self.store, run_id)) from None
            yield run

    @cachedmethod(lambda kit: kit._explained, key=lambda _, run_id: run_id, condition=lambda kit: kit._explaining)
    def explain(self, run_id: str) -> Why:
        """Return why a run is as it is, or was a few seconds ago; who asks meanwhile waits. Raises UnknownRun."""
        with self.open(run_id) as run:
            return why.explain(run, catalogue=self.catalogue, now=self.now())

    def compare(self, run_ids: Sequence[str], metric: str) -> Side:
        """Read a metric of several runs, and their configurations."""
        series, configs, problems = [], {}, []
        for run_id in run_ids:
            try:
                with self.open(run_id) as run:
                    configs[run_id] = compare.config(run)
                    series.append(curves.find(run, metric, self.catalogue))
            except NotFound as error:
                problems.append(str(error))
        printed = {run_id: config for run_id, config in configs.items() if config is not None}
        return Side(series, list(printed), compare.differences(*printed.values()), problems)

    def step_number(self, run: RunReader, text: str, window: int = baseline.WINDOW) -> int:
        """Return the step that a path names: a number, last, -2, first-bad, or a time."""
        return names.find_step(run, text, catalogue=self.catalogue, now=self.now(), window=window)


def _kit(request: Request) -> Kit:
    return request.app.state.kit


def _run_id(run: str) -> str:
    return page.run_of(run)


Own = Annotated[Kit, Depends(_kit)]


def _back(kit: Own, back: str | None = None) -> str | None:
    return grafana.way_back(kit.settings.grafana_url, back)


Back = Annotated[str | None, Depends(_back)]
RunId = Annotated[str, Depends(_run_id)]
Window = Annotated[int, Query(ge=baseline.ENOUGH, le=WIDEST, description="Steps before it that say what is usual.")]
Runs = Annotated[tuple[str, ...], Query(max_length=8, description="Names of runs, at most 8.")]
Metric = Annotated[str, Query(description="A metric as printed in the logs, or a name of the metric catalogue.")]
Rank = Annotated[int | None, Query(ge=0, le=MOST_RANK, description="One rank.")]
