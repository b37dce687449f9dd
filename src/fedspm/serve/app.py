"""The router's addresses: the HTTP API with its OpenAPI description, the page, health and metrics."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedspm.serve.bundle import TENSORS
from fedspm.serve.http.errors import speaking
from fedspm.serve.http.guard import HEADERS, Declined
from fedspm.serve.router import How, Router
from fedspm.version import __version__

PAGE = Path(__file__).with_name("page")
PAGES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}
log = logging.getLogger("fedspm.serve")


class Answer(BaseModel):
    """What is said of one row."""

    client: str = Field(description="whom the row resembles most")
    posterior: dict[str, float] = Field(description="P(client | x)")
    components: list[float] = Field(description="P(component | x) inside the client that answered")
    novel: bool | None = Field(description="true: the row resembles nobody; null: the bundle is not calibrated")
    novelty: float | None = Field(description="share of known rows that look less novel")
    warning: str | None = Field(None, description="there if the row is novel")
    answered_by: str | None = Field(None, description="who answered; in a blend, who had the largest share")
    weights: dict[str, float] | None = Field(None, description="everybody who answered, with their share")
    fallback: bool | None = Field(None, description="true if the client that was meant did not answer")
    prediction: str | int | float | bool | None = Field(None, description="the likeliest class")
    probabilities: dict[str, float] | None = Field(None, description="P(class | x)")
    means: str | int | float | bool | None = Field(
        None, description="where label names are permuted by construction: the class that the prediction stands for"
    )
    in_words: str | None = Field(None, description="there if they are: whose name the prediction is, and for what")
    view: str | None = Field(None, description="with view=true: the image as the model sees it, a data URL")
    seconds: float | None = Field(None, description="time inside the router, if one row was asked for")


class Answers(BaseModel):
    """What is said of a batch."""

    answers: list[Answer]
    seconds: float


class Problem(BaseModel):
    """Why a request was refused."""

    error: str


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
                            "be an object with a number for each of them, in any order",
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
    app = FastAPI(title="FedSPM router", version=__version__, docs_url=None, redoc_url=None, lifespan=router.living)
    app.add_middleware(Watching, router=router)
    _queries(speaking(app), router)
    _service(app, router)
    _page(app, router, samples)
    return app


def _queries(app: FastAPI, router: Router) -> None:
    async def answered(request: Request, how: How) -> Response:
        router.callers.admit(request)
        if router.stopping:
            raise Declined(503, "the router is shutting down; try again later", {"retry-after": "1"})
        return _json(await router.answer(request, how))

    @app.post("/v1/predict", summary="Route rows and predict", **ANSWER)
    async def predict(request: Request, mode: Mode = "best", top: Top = 3, view: View = False) -> Response:
        return await answered(request, How(mode, top, view))

    @app.post("/v1/route", summary="Route rows, without a prediction", **ANSWER)
    async def route(request: Request, view: View = False) -> Response:
        return await answered(request, How(view=view, predict=False))


def _service(app: FastAPI, router: Router) -> None:
    @app.get("/v1/clients", summary="Clients and the health of their nodes", responses={401: {"model": Problem}})
    async def clients(request: Request) -> Response:
        router.callers.admit(request)
        return _json(router.clients())

    @app.get("/v1/model", summary="What is served", responses={401: {"model": Problem}})
    async def model(request: Request) -> Response:
        router.callers.admit(request)
        card = router.current.model.card
        kept = {"version", "shape", "range", "classes", "columns", "names", "false_alarms"}
        limits = {"body": router.limits.body, "batch": router.limits.batch, "pixels": router.limits.pixels}
        return _json(
            card.model_dump(include=kept)
            | {"algorithm": card.settings.algorithm, "components": card.settings.components, "limits": limits}
        )

    @app.get("/healthz", summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Can queries be answered?", responses={503: {"model": Problem}})
    async def readyz() -> dict[str, str]:
        if router.stopping:
            raise Declined(503, "the router is shutting down")
        if not any(node.up for node in router.dispatcher.nodes):
            raise Declined(503, "no node is up")
        return {"status": "ready", "version": router.current.model.card.version}

    @app.get("/metrics", summary="Metrics in Prometheus format", responses={401: {"model": Problem}})
    async def metrics(request: Request) -> Response:
        router.callers.admit(request)
        router.clients()  # sets the gauges of the nodes
        return router.metrics.response()


def _page(app: FastAPI, router: Router, samples: Path | None) -> None:
    for address, file in PAGES.items():
        app.get(address, include_in_schema=False)(_file(PAGE / file))
    known = {path.stem: path for path in sorted(samples.glob("*.png"))} if samples and samples.is_dir() else {}

    @app.get("/v1/samples", include_in_schema=False)
    async def names(request: Request) -> Response:
        router.callers.admit(request)
        return _json(list(known))

    @app.get("/v1/samples/{name}", include_in_schema=False)
    async def sample(request: Request, name: str) -> Response:
        router.callers.admit(request)
        if name not in known:
            raise Declined(404, f"there is no sample {name!r}")
        return FileResponse(known[name])


def _file(path: Path) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return FileResponse(path)

    return file


def _json(content: Any) -> Response:
    return Response(to_json(content), media_type="application/json")


class Watching:
    """Headers on every reply, and a line in the log: path, status, size and time. Nothing of the query itself."""

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
            if path.startswith("/v1/"):
                self._metrics.seconds.observe(seconds)
                log.info("%s %d %d bytes %.1f ms", path, status, size, 1000 * seconds)
