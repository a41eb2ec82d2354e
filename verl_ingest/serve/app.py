"""The service: `create` puts it together, `config` says how it is run."""

from collections.abc import Collection

import uvicorn
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, Response

from verl_ingest import __version__
from verl_ingest.catalog import metrics
from verl_ingest.links import page
from verl_ingest.query.store import Store
from verl_ingest.serve import api, pages, problems
from verl_ingest.serve.kit import Kit
from verl_ingest.serve.security import Guard
from verl_ingest.serve.telemetry import Measured, Telemetry
from verl_ingest.settings import Settings

MOST_AT_ONCE = 200  # requests; more are turned away


def create(settings: Settings, store: Store, *, hosts: Collection[str] | None = None) -> FastAPI:
    """Return the service; `hosts` are the names it goes by, None for any."""
    kit, telemetry = Kit(settings, store, metrics.load()), Telemetry()
    app = FastAPI(
        title="verl-ingest",
        summary="What happened at step N of a verl run.",
        version=__version__,
        openapi_url=f"{page.API}/openapi.json",
        docs_url=None,  # these two pages load their scripts from another site
        redoc_url=None,
        redirect_slashes=False,  # a name may end with a slash
    )
    app.state.kit = kit

    @app.get("/healthz", include_in_schema=False)
    def health() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/metrics", include_in_schema=False)
    def counts() -> Response:
        return Response(telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    app.include_router(api.router)
    app.include_router(pages.router)
    problems.install(app, kit, telemetry)
    app.add_middleware(Guard, settings=settings, base=kit.base, hosts=hosts)
    app.add_middleware(Measured, telemetry=telemetry)
    return app


def config(app: FastAPI) -> uvicorn.Config:
    """Return how the service is run."""
    return uvicorn.Config(
        app,
        proxy_headers=False,  # the guard must see who really connects
        server_header=False,
        access_log=False,  # /metrics counts
        log_level="warning",
        limit_concurrency=MOST_AT_ONCE,
    )
