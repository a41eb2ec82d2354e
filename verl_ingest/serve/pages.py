"""The pages that people read."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException

from verl_ingest.context import around, baseline, runs, setup, step
from verl_ingest.context.names import NO_RUNS
from verl_ingest.errors import NotFound
from verl_ingest.links import grafana, page
from verl_ingest.links import step as step_links
from verl_ingest.serve import drilldown, problems
from verl_ingest.serve.kit import Back, Kit, Metric, Own, Rank, RunId, Runs, Window
from verl_ingest.serve.page import addresses, compare, episode, overview, render, static, view
from verl_ingest.serve.page import runs as page_runs

MOST_RUNS = 50
FOREVER = "public, max-age=31536000, immutable"  # the address of a file changes with it

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/")
def root(kit: Own) -> Response:
    """Lead to the list of runs."""
    return RedirectResponse(page.runs(kit.base), 302)


@router.get("/static/{name}")
def static_file(name: str) -> Response:
    """Send a file that the pages load."""
    if name not in static.FILES:
        raise HTTPException(404)
    return FileResponse(static.FILES[name], headers={"Cache-Control": FOREVER})


@router.get("/runs")
@router.get("/runs/")
def list_runs(kit: Own, limit: Annotated[int, Query(ge=1, le=1_000)] = MOST_RUNS) -> Response:
    """List runs, the one that logged last first."""
    found = runs.newest(kit.store, catalogue=kit.catalogue, now=kit.now(), most=limit + 1)
    more = f"{page.runs(kit.base)}?limit={min(limit * 4, 1_000)}" if len(found) > limit < 1_000 else None
    rows = page_runs.rows(found[:limit], kit.catalogue, base=kit.base)
    headings = page_runs.headings(kit.catalogue)
    return _html(kit, "runs.html.j2", rows=rows, headings=headings, more=more, none=NO_RUNS)


@router.get("/runs/{run:path}/steps/{step_name}/previous-anomaly")
def previous_anomaly(kit: Own, run_id: RunId, step_name: str, back: Back) -> Response:
    """Lead to the nearest step before this one that is not normal."""
    return _to_anomaly(kit, run_id, step_name, back, forward=False)


@router.get("/runs/{run:path}/steps/{step_name}/next-anomaly")
def next_anomaly(kit: Own, run_id: RunId, step_name: str, back: Back) -> Response:
    """Lead to the nearest step after this one that is not normal."""
    return _to_anomaly(kit, run_id, step_name, back, forward=True)


@router.get("/runs/{run:path}/steps/{step_name}/episode")
def one_episode(kit: Own, run_id: RunId, step_name: str, back: Back) -> Response:
    """Return the parts of a step's page that take longer: when its trouble began, where to go back to."""
    with kit.open(run_id) as run:
        number = kit.step_number(run, step_name)
        findings = step.assemble(run, number, catalogue=kit.catalogue, now=kit.now()).findings
    found = kit.explain(run_id)
    place = episode.tell(found.episodes, found.checkpoint, number, findings)
    return HTMLResponse(render.episode_html(place, addresses.of_step(kit.base, run_id, number, back=back)))


@router.get("/runs/{run:path}/steps/{step_name}")
def one_step(
    kit: Own,
    run_id: RunId,
    step_name: str,
    back: Back,
    rank: Rank = None,
    metric: str | None = None,
    window: Window = baseline.WINDOW,
) -> Response:
    """Show everything about a step; `metric` and `rank` are what the reader clicked on."""
    with kit.open(run_id) as run:
        number = kit.step_number(run, step_name, window)
        if step_name != str(number):
            return RedirectResponse(page.step(kit.base, run_id, number, rank=rank, metric=metric, back=back), 302)
        try:
            evidence = step.gather(run, number, catalogue=kit.catalogue, window=window, now=kit.now())
        except NotFound as error:
            return _nearest(kit, run_id, str(error), step.nearest(run, number), back, status=404)
        context = step.describe(evidence, catalogue=kit.catalogue, now=kit.now())
        beside = around.gather(run, evidence, context.findings, catalogue=kit.catalogue, now=kit.now(), window=window)
        tracker = setup.read(run.setup()).tracker
    links = step_links.add(context, kit.settings, rank=rank).body["links"]
    to = addresses.of_step(
        kit.base,
        run_id,
        number,
        permalink=links["page"],
        kibana=links["kibana"],
        grafana=links["grafana"],
        tracker=tracker,
        back=back,
    )
    note = _note(metric, rank)
    shown = view.build(evidence, context, beside, catalogue=kit.catalogue, addresses=to, note=note)
    return HTMLResponse(render.step_html(shown, base=kit.base))


@router.get("/runs/{run:path}")
def one_run(kit: Own, run_id: RunId) -> Response:
    """Show why a run is as it is, what to do first, where to look."""
    found = kit.explain(run_id)
    [row] = runs.complete(kit.store, [found.run.row], catalogue=kit.catalogue, now=kit.now())
    golden = page_runs.golden(row, kit.catalogue)
    return _html(kit, "run.html.j2", view=overview.build(found, base=kit.base), golden=golden)


@router.get("/compare")
def compare_runs(
    kit: Own,
    run: Runs = (),
    metric: Metric = "reward_mean",
    smooth: Annotated[float, Query(ge=0, le=0.99)] = 0.0,
) -> Response:
    """Lay one metric of several runs over each other."""
    names = [name for name in run if name]  # the form has an empty field for one more
    side = kit.compare(names, metric)
    return _html(
        kit,
        "compare.html.j2",
        action=page.compare(kit.base),
        runs=names,
        metric=metric,
        metrics=compare.choices(kit.catalogue),
        smooth=smooth,
        side=side,
        overlay=compare.draw(side.series, smooth=smooth, base=kit.base),
    )


@router.get("/drilldown")
def drill_down(kit: Own, request: Request) -> Response:
    """Lead from a point of a chart to its step, or with `to` on to Kibana or Grafana."""
    wanted = drilldown.read(request.scope["query_string"].decode("latin-1"))
    if wanted.run_id is None:
        return problems.answer(request, kit, "The link names no run; add run_id= and the name of one.", 400)
    back = grafana.way_back(kit.settings.grafana_url, wanted.back)
    with kit.open(wanted.run_id) as run:
        if wanted.step is None and wanted.time is None:
            return RedirectResponse(page.run(kit.base, wanted.run_id), 302)
        found = drilldown.find(run, wanted)
        if found.step is None:
            return _nearest(kit, wanted.run_id, found.sentence, found.nearest, back)
        span = run.span(found.step) if wanted.to else None
    here = page.step(kit.base, wanted.run_id, found.step, rank=wanted.rank, metric=wanted.metric, back=back)
    if wanted.to is None:
        return RedirectResponse(here, 302)
    address = step_links.address(kit.settings, wanted.to, wanted.run_id, found.step, span, rank=wanted.rank)
    if address is None:
        sentence = f"There is no {wanted.to.title()} to go to; set {step_links.SETTING[wanted.to]}."
        return problems.answer(request, kit, sentence, 404, [(f"Step {found.step}", here)])
    return RedirectResponse(address, 302)


def _to_anomaly(kit: Kit, run_id: str, step_name: str, back: str | None, *, forward: bool) -> Response:
    with kit.open(run_id) as run:
        number = kit.step_number(run, step_name)
        found = around.find_anomaly(
            run, number, forward=forward, catalogue=kit.catalogue, now=kit.now(), window=baseline.WINDOW
        )
    if found is None:
        side = "after" if forward else "before"
        sentence = f"None of the {around.FARTHEST} steps {side} step {number} is abnormal."
        return _nearest(kit, run_id, sentence, [number], back, missing=False)
    return RedirectResponse(page.step(kit.base, run_id, found, back=back), 302)


def _nearest(
    kit: Kit,
    run_id: str,
    sentence: str,
    steps: Sequence[int],
    back: str | None,
    *,
    status: int = 200,
    missing: bool = True,
) -> Response:
    choices = [(f"Step {number}", page.step(kit.base, run_id, number, back=back)) for number in steps]
    choices += [(f"Run {run_id}", page.run(kit.base, run_id))]
    return HTMLResponse(render.unknown_step_html(sentence, choices, base=kit.base, missing=missing), status)


def _note(metric: str | None, rank: int | None) -> str:
    """Say what the reader clicked on."""
    parts = [metric or "", f"rank {rank}" if rank is not None else ""]
    return f"You came here for {', '.join(filter(None, parts))}." if any(parts) else ""


def _html(kit: Kit, template: str, **values: object) -> Response:
    return HTMLResponse(render.html(template, base=kit.base, **values))
