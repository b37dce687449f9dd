"""A node: one client's predictor, head and part of the mixture, behind HTTP. Only the router talks to it."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.data.arrays import as_input
from fedspm.serve.batching import Batcher, Worker
from fedspm.serve.bundle import TENSORS, NodeModel, load_node, pack, unpacked_rows
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.http.auth import bearer
from fedspm.serve.http.errors import add_error_handlers
from fedspm.serve.http.in_flight import BodiesInFlight
from fedspm.serve.http.limits import read_body
from fedspm.serve.http.problem import HTTPProblem
from fedspm.serve.metrics import NodeMetrics

AT_ONCE = 256  # rows whose activations stay in the cache
LARGEST = 2**30  # bytes that a router may send: AT_ONCE images of 512 pixels are 805 MB
BODY_TIMEOUT = 10.0  # seconds that a router has to send its rows
VERSION = "x-fedspm-version"
log = logging.getLogger("fedspm.serve")


@dataclass(frozen=True)
class Task:
    """Rows that a router asked about, and the model of the version that it asked for."""

    model: NodeModel
    x: Tensor
    features: Tensors


class Health(BaseModel):
    """What a node says of itself to anybody."""

    status: str = "ok"
    client: str
    versions: list[str]
    admitted: bool = True  # has the caller shown the secret? Older nodes do not say


class Node:
    def __init__(self, folder: Path, secret: str | None, allowed: Collection[str] = (), trust: bytes | None = None):
        self.current = ReloadableModel(folder, partial(load_node, allowed=allowed, trust=trust))
        self.metrics = NodeMetrics()
        self._secret = secret
        self._bodies = BodiesInFlight(LARGEST)
        self._worker = Worker("answer")
        self._batcher = Batcher(self._answer, lambda task: len(task.x), AT_ONCE, self.metrics.batch_rows.observe)

    async def answer(self, request: Request) -> Tensor:
        """Class probabilities of the rows in the request, by the version of the model that the router used."""
        if not self._admits(request):
            raise HTTPProblem(
                401, "only the router may ask this node; give the shared secret", {"www-authenticate": "Bearer"}
            )
        version = request.headers.get(VERSION, "")
        model = self.current.of_version(version)
        if model is None:
            raise HTTPProblem(409, f"this node has version {' and '.join(self.current.versions())}, not {version!r}")
        async with self._bodies.reading(BODY_TIMEOUT) as arriving:
            x, features = unpacked_rows(await read_body(request, LARGEST, arriving.took))
        try:
            task = Task(model, as_input(x, model.card.shape), features)
            return await self._batcher.ask(task)
        except (FedSPMError, KeyError, RuntimeError, ValueError) as error:
            raise HTTPProblem(422, f"the rows do not fit this node: {str(error).splitlines()[0]}") from error

    def health(self, request: Request) -> Health:
        return Health(
            client=self.current.model.card.names[0],
            versions=self.current.versions(),
            admitted=self._admits(request),
        )

    def _admits(self, request: Request) -> bool:
        return not self._secret or hmac.compare_digest(bearer(request).encode(), self._secret.encode())

    async def _answer(self, tasks: list[Task]) -> list[Tensor]:
        return await self._worker.compute(sum(len(task.x) for task in tasks), partial(self._compute, tasks))

    def _compute(self, tasks: list[Task]) -> list[Tensor]:
        if len({id(task.model) for task in tasks}) > 1:  # a bundle was swapped in between
            return [task.model.answer(task.x, task.features) for task in tasks]
        x = torch.cat([task.x for task in tasks])
        features = {name: torch.cat([task.features[name] for task in tasks]) for name in tasks[0].features}
        return list(tasks[0].model.answer(x, features).split([len(task.x) for task in tasks]))

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(self.current.watch())
        yield
        watching.cancel()
        self._worker.shutdown()


def node_app(
    folder: Path, secret: str | None = None, allowed: Collection[str] = (), trust: bytes | None = None
) -> FastAPI:
    """`allowed` and `trust` are those of `load_router`."""
    node = Node(folder, secret, allowed, trust)
    app = FastAPI(title="FedSPM node", docs_url=None, redoc_url=None, openapi_url=None, lifespan=node.lifespan)
    add_error_handlers(app)

    async def answer(request: Request) -> Response:
        with node.metrics.timed():
            probabilities = await node.answer(request)
        node.metrics.rows.inc(len(probabilities))
        return Response(pack({"probabilities": probabilities}), media_type=TENSORS)

    app.add_route("/v1/answer", answer, methods=["POST"])  # Starlette's: the body is tensors, nothing to validate

    @app.get("/healthz")
    @app.get("/readyz")
    async def health(request: Request) -> Health:
        return node.health(request)

    @app.get("/metrics")
    async def metrics() -> Response:
        return node.metrics.response()

    return app
