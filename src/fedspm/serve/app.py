"""The router's addresses: the HTTP API with its OpenAPI description, the page, health and metrics."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedspm.serve.answers import Answer, Answers
from fedspm.serve.bundle import TENSORS
from fedspm.serve.http.errors import HEADERS, Problem, add_error_handlers
from fedspm.serve.http.problem import HTTPProblem
from fedspm.serve.router import QueryOptions, Router
from fedspm.version import __version__

PAGE = Path(__file__).with_name("page")
PAGES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}
QUERIES = ("/v1/predict", "/v1/route")
log = logging.getLogger("fedspm.serve")

NAMED_X = "one tensor, named x; the metadata `columns`, a JSON list, may name its columns"
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "image/*": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "image": {"type": "string", "format": "binary"},
                        "images": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["x"],
                    "additionalProperties": False,
                    "properties": {
                        "x": {
                            "description": "a row, or a list of rows; where columns have names (/v1/model), a row may "
                            "be an object with a value for each of them, in any order; null where one is missing",
                            "anyOf": [{"type": "array", "items": {}}, {"type": "object"}],
                        }
                    },
                }
            },
            TENSORS: {"schema": {"type": "string", "format": "binary", "description": NAMED_X}},
        },
    }
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem} for status in (400, 401, 408, 413, 415, 422, 429, 503)
}
ANSWER: dict[str, Any] = {
    "openapi_extra": BODY,
    "responses": {200: {"model": Answer | Answers}, **REFUSALS},
    "response_class": Response,
}
Mode = Annotated[Literal["best", "blend"], Query(description="best: the likeliest client; blend: the likeliest `top`")]
Top = Annotated[int, Query(ge=1, le=64, description="how many clients a blend asks")]
View = Annotated[bool, Query(description="send the image back as the model sees it")]


def router_app(router: Router, samples: Path | None = None) -> FastAPI:
    """The HTTP API of a router, and its page, which offers the PNG files in `samples` as examples."""
    app = FastAPI(title="FedSPM router", version=__version__, docs_url=None, redoc_url=None, lifespan=router.lifespan)
    app.add_middleware(RequestLog, router=router)
    add_error_handlers(app)
    _queries(app, router)
    _service(app, router)
    _page(app, router, samples)
    return app


def _queries(app: FastAPI, router: Router) -> None:
    async def answered(request: Request, options: QueryOptions) -> Response:
        router.admit(request)
        if router.stopping:
            raise HTTPProblem(503, "the router is shutting down; try again later", {"retry-after": "1"})
        return _json(await router.answer(request, options))

    @app.post("/v1/predict", summary="Route rows and predict", **ANSWER)
    async def predict(request: Request, mode: Mode = "best", top: Top = 3, view: View = False) -> Response:
        return await answered(request, QueryOptions(mode, top, view))

    @app.post("/v1/route", summary="Route rows, without a prediction", **ANSWER)
    async def route(request: Request, view: View = False) -> Response:
        return await answered(request, QueryOptions(view=view, predict=False))


def _service(app: FastAPI, router: Router) -> None:
    @app.get("/v1/clients", summary="Clients and the health of their nodes", responses={401: {"model": Problem}})
    async def clients(request: Request) -> Response:
        router.admit(request)
        return _json(router.clients())

    @app.get("/v1/model", summary="What is served", responses={401: {"model": Problem}})
    async def model(request: Request) -> Response:
        router.admit(request)
        card = router.current.model.card
        kept = {"version", "shape", "range", "classes", "table", "names", "false_alarms"}
        limits = {"body": router.limits.body, "batch": router.limits.batch, "pixels": router.limits.pixels}
        return _json(
            card.model_dump(mode="json", include=kept)
            | {"columns": card.columns}
            | {"algorithm": card.settings.algorithm, "components": card.settings.components, "limits": limits}
        )

    @app.get("/healthz", summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Can queries be answered?", responses={503: {"model": Problem}})
    async def readyz() -> dict[str, str]:
        if router.stopping:
            raise HTTPProblem(503, "the router is shutting down")
        if not any(node.up for node in router.dispatcher.nodes):
            raise HTTPProblem(503, "no node is up")
        return {"status": "ready", "version": router.current.model.card.version}

    @app.get("/metrics", summary="Metrics in Prometheus format", responses={401: {"model": Problem}})
    async def metrics(request: Request) -> Response:
        router.admit(request)
        router.clients()  # sets the gauges of the nodes
        return router.metrics.response()


def _page(app: FastAPI, router: Router, samples: Path | None) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return RedirectResponse("/openapi.json")

    for address, file in PAGES.items():
        app.get(address, include_in_schema=False)(_file(PAGE / file))
    known = {path.stem: path for path in sorted(samples.glob("*.png"))} if samples and samples.is_dir() else {}

    @app.get("/v1/samples", include_in_schema=False)
    async def names(request: Request) -> Response:
        router.admit(request)
        return _json(list(known))

    @app.get("/v1/samples/{name}", include_in_schema=False)
    async def sample(request: Request, name: str) -> Response:
        router.admit(request)
        if name not in known:
            raise HTTPProblem(404, f"there is no sample {name!r}")
        return FileResponse(known[name])


def _file(path: Path) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return FileResponse(path)

    return file


def _json(content: Any) -> Response:
    return Response(to_json(content), media_type="application/json")


class RequestLog:
    """Writes one line per query to the log (path, status, size and time, nothing of the query itself), counts every
    request, and adds the security headers to the reply."""

    def __init__(self, app: ASGIApp, router: Router):
        self._app = app
        self._metrics = router.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status, size = time.perf_counter(), 500, 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            return message

        async def headed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given: Mapping[bytes, bytes] = dict(message["headers"])
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in added if pair[0] not in given)]
            await send(message)

        try:
            await self._app(scope, counted, headed)
        finally:
            seconds = time.perf_counter() - began
            route = scope.get("route")
            path = getattr(route, "path", "elsewhere")  # the declared address: what a caller types is not logged
            self._metrics.requests.labels(path, str(status)).inc()
            if path in QUERIES:  # a page that is open asks for the nodes' health every few seconds
                self._metrics.seconds.observe(seconds)
                log.info("%s %d %d bytes %.1f ms", path, status, size, 1000 * seconds)
