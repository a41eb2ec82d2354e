"""The same as the pages, as JSON."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from verl_ingest.context import baseline, narrow, runs, step
from verl_ingest.errors import NotFound
from verl_ingest.links import page
from verl_ingest.links import step as step_links
from verl_ingest.serve import drilldown
from verl_ingest.serve.kit import Metric, Own, Rank, RunId, Runs, Window
from verl_ingest.serve.page import samples

PROBLEM = {
    "description": "What is wrong and what to do, in one sentence",
    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}},
}


class Json(Response):
    """An answer that is JSON already; FastAPI's own would look through a step's ten thousand values once more."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write the value."""
        return orjson.dumps(content)


router = APIRouter(prefix=page.API, default_response_class=Json, responses=dict.fromkeys((400, 404, 503), PROBLEM))


@router.get("/runs")
def list_runs(kit: Own, limit: Annotated[int, Query(ge=1, le=1_000)] = 50) -> Response:
    """List runs, the one that logged last first: state, newest step, time to go, golden six."""
    found = runs.newest(kit.store, catalogue=kit.catalogue, now=kit.now(), most=limit)
    return Json([run.entry() for run in found])


@router.get("/runs/{run:path}/steps/{step_name}/samples/{event_id}")
def one_sample(kit: Own, run_id: RunId, event_id: str) -> Response:
    """Return the whole texts of one sample."""
    with kit.open(run_id) as run:
        document = run.sample(event_id)
    if document is None:
        raise NotFound(f"Run '{run_id}' has no sample {event_id}.")
    return Json(samples.texts(document))


@router.get("/runs/{run:path}/steps/{step_name}")
def one_step(
    kit: Own,
    run_id: RunId,
    step_name: str,
    stage: str | None = None,
    rank: Rank = None,
    window: Window = baseline.WINDOW,
) -> Response:
    """Tell everything about a step (a number, last, -2, first-bad, or a time), as `verl-ingest step --json` does."""
    with kit.open(run_id) as run:
        number = kit.step_number(run, step_name, window)
        found = step.assemble(run, number, catalogue=kit.catalogue, now=kit.now(), window=window)
    if stage is not None:
        found = narrow.to_stage(found, stage)
    if rank is not None:
        found = narrow.to_rank(found, rank)
    return Json(step_links.add(found, kit.settings, rank=rank).body)


@router.get("/runs/{run:path}")
def one_run(kit: Own, run_id: RunId) -> Response:
    """Tell why a run is as it is, as `verl-ingest why --json` does."""
    return Json(kit.explain(run_id).entry())


@router.get("/compare")
def compare_runs(kit: Own, run: Runs = (), metric: Metric = "reward_mean") -> Response:
    """Tell how the configurations of runs differ, and one metric by step.

    Points are [step, mean, least, greatest] of the last 2,000 steps.
    """
    side = kit.compare(run, metric)
    config = {"runs": side.printed, "differences": side.differences}
    runs_ = [series.entry() for series in side.series]
    return Json({"metric": metric, "config": config, "runs": runs_, "problems": side.problems})


@router.get("/drilldown")
def drill_down(kit: Own, request: Request) -> Response:
    """Tell which step a link means, by run_id and step or t (ms since 1970); without one the nearest steps."""
    wanted = drilldown.read(request.scope["query_string"].decode("latin-1"))
    with kit.open(wanted.run_id or "") as run:
        found = drilldown.find(run, wanted)
    return Json(
        {"run_id": wanted.run_id, "step": found.step, "nearest": list(found.nearest), "sentence": found.sentence}
    )
