"""What went wrong, as one sentence: a page, or JSON below /api."""

from collections.abc import Sequence

from elastic_transport import TransportError
from elasticsearch import ApiError, UnsupportedProductError
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import get_route_path

from verl_ingest.errors import InputError, KitError, NotFound, StoreError
from verl_ingest.index import client
from verl_ingest.links import page
from verl_ingest.serve.kit import Kit, UnknownRun
from verl_ingest.serve.page import render
from verl_ingest.serve.telemetry import Telemetry

STATUS = ((NotFound, 404), (InputError, 400), (StoreError, 503), (KitError, 500))
Choices = Sequence[tuple[str, str]]  # words, address


def install(app: FastAPI, kit: Kit, telemetry: Telemetry) -> None:
    """Answer every error of the handlers with its sentence."""

    def of_kit(request: Request, error: KitError) -> Response:
        status = next(number for kind, number in STATUS if isinstance(error, kind))
        if isinstance(error, StoreError):
            telemetry.store_errors.inc()
        similar = error.similar if isinstance(error, UnknownRun) else ()
        choices = [(run_id, page.run(kit.base, run_id)) for run_id in similar]
        return answer(request, kit, str(error), status, choices)

    def of_store(request: Request, error: Exception) -> Response:
        return of_kit(request, client.explain(error, kit.settings))

    def of_query(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return answer(request, kit, f"{first['loc'][-1]} can't be used: {first['msg']}.", 400)

    def of_http(request: Request, error: HTTPException) -> Response:
        sentence = "There is no such page." if error.status_code == 404 else f"{error.detail}."
        return answer(request, kit, sentence, error.status_code)

    app.add_exception_handler(KitError, of_kit)
    app.add_exception_handler(RequestValidationError, of_query)
    app.add_exception_handler(HTTPException, of_http)
    for kind in (TransportError, ApiError, UnsupportedProductError):
        app.add_exception_handler(kind, of_store)


def answer(request: Request, kit: Kit, sentence: str, status: int, choices: Choices = ()) -> Response:
    """Return the sentence, and where to go instead."""
    if get_route_path(request.scope).startswith(f"{page.API}/"):
        return JSONResponse({"error": sentence, "instead": [words for words, _ in choices]}, status)
    choices = [*choices, ("All runs", page.runs(kit.base))]
    return HTMLResponse(render.unknown_step_html(sentence, choices, base=kit.base, missing=False), status)
