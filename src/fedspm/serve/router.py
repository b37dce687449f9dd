"""The router: looks at a query, asks the node of the client it resembles, and says who answered and why."""

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from fastapi import FastAPI, Request
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.images import encode_png
from fedspm.federated.evaluation import require_finite_answers
from fedspm.serve.answers import Answer, Answers, build_answers
from fedspm.serve.batching import Batcher, Worker
from fedspm.serve.bundle import Card, RouterModel, load_router
from fedspm.serve.dispatch import Dispatcher, Prediction, RemoteNode
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.http.auth import BearerTokens, read_table
from fedspm.serve.http.in_flight import Readers
from fedspm.serve.http.limits import Limits, RateLimiter
from fedspm.serve.http.problem import HTTPProblem
from fedspm.serve.http.request_body import read_query
from fedspm.serve.metrics import RouterMetrics
from fedspm.serve.routing_result import RoutingResult
from fedspm.serve.transport import HttpTransport, Transport

DEADLINE = 10.0  # seconds that an answer may take
ROWS_AT_ONCE = 1024  # many, so that each node gets a large part of them
NODE_LINE = 'north = "https://north.example:8001"'
log = logging.getLogger("fedspm.serve")


@dataclass(frozen=True)
class QueryOptions:
    """What a caller asked for besides the rows."""

    mode: Literal["best", "blend"] = "best"
    top: int = 3
    view: bool = False
    predict: bool = True


@dataclass(frozen=True)
class Question:
    """The rows of a query, and the model that they were read for."""

    model: RouterModel
    x: Tensor


@dataclass(frozen=True)
class RoutedQuery:
    """What the router found out about the rows of a query, and the model that it used."""

    model: RouterModel
    result: RoutingResult


class Router:
    def __init__(
        self,
        folder: Path,
        nodes: Mapping[str, str] | Path,
        *,
        secret: str | None = None,
        tokens: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        deadline: float = DEADLINE,
        authority: Path | None = None,
        transport: Transport | None = None,
        allowed: Collection[str] = (),  # names of code from outside this package that may be imported
        trust: bytes | None = None,  # bundles must be signed with it
    ):
        self.current = ReloadableModel(folder, partial(load_router, allowed=allowed, trust=trust))
        self.limits = limits or Limits()
        self._tokens = BearerTokens(tokens or {})
        self._rate = RateLimiter(self.limits.rate)
        self.metrics = RouterMetrics()
        self.deadline = deadline
        self.stopping = False
        self._transport = transport or HttpTransport(secret, authority)
        self._addresses = nodes  # a file is read again when a bundle brings a client that is not known yet
        self._nodes: dict[str, RemoteNode] = {}
        self._meet(self.current.model.card)
        self._worker = Worker("route")
        self._readers = Readers(self.limits.body)
        self._batcher = Batcher(self._route, _rows, ROWS_AT_ONCE, self.metrics.batch_rows.observe)
        self._waiting = 0

    def admit(self, request: Request) -> None:
        """Let the request pass, or refuse it: who asks must be known and must not ask too often."""
        self._rate.admit(self._tokens.identify(request))

    # -- one request -------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, options: QueryOptions) -> Answer | Answers:
        """Read the rows, route them, let the clients' nodes predict, and say what came of it."""
        began = time.monotonic()
        deadline = began + self.deadline
        model = self.current.model
        query = await read_query(request, model.card, self.limits, self._readers, self.deadline)
        if self._waiting + len(query.x) > self.limits.waiting:
            raise HTTPProblem(503, f"{self._waiting} rows are waiting already; try again later", {"retry-after": "1"})
        self._waiting += len(query.x)
        self.metrics.waiting.set(self._waiting)
        try:
            routed = await self._batcher.ask(Question(self._newest_like(model), query.x))
            _require_finite(routed.result.posterior, "P(client | x)")
            _require_finite(routed.result.components, "P(component | x)")
            prediction = await self._predict(query.x, routed, options, deadline) if options.predict else None
        finally:
            self._waiting -= len(query.x)
            self.metrics.waiting.set(self._waiting)
        answers = build_answers(routed.model.card, routed.result, prediction)
        self._count(answers)
        seconds = round(time.monotonic() - began, 6)
        if not query.single:
            return Answers(answers=answers, seconds=seconds)
        (answer,) = answers
        if options.view and len(routed.model.card.shape) == 3:
            answer["view"] = _data_url(query.x[0])
        answer["seconds"] = seconds
        return answer

    async def _predict(self, x: Tensor, routed: RoutedQuery, options: QueryOptions, deadline: float) -> Prediction:
        version, nodes = routed.model.card.version, self._dispatcher_of(routed.model.card)
        if options.mode == "blend":
            prediction = await nodes.blend(version, x, routed.result, deadline, options.top)
        else:
            prediction = await nodes.best(version, x, routed.result, deadline)
        _require_finite(torch.from_numpy(prediction.probabilities), "P(class | x)")
        return prediction

    def _newest_like(self, model: RouterModel) -> RouterModel:
        """The model of now, if rows that were read for an earlier one are rows to it too."""
        newest, before = self.current.model, model.card
        return newest if (newest.card.shape, newest.card.table) == (before.shape, before.table) else model

    async def _route(self, questions: list[Question]) -> list[RoutedQuery]:
        return await self._worker.compute(sum(map(_rows, questions)), partial(routed_by_model, questions))

    def _count(self, answers: list[Answer]) -> None:
        self.metrics.rows.inc(len(answers))
        for answer in answers:
            if answer["novel"]:
                self.metrics.novel.inc()
            if "answered_by" in answer:
                self.metrics.answered.labels(answer["answered_by"]).inc()
                if answer["fallback"]:
                    self.metrics.fallbacks.labels(answer["client"]).inc()

    # -- nodes -------------------------------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> Dispatcher:
        return self._dispatcher_of(self.current.model.card)

    def _dispatcher_of(self, card: Card) -> Dispatcher:
        return Dispatcher([self._nodes[name] for name in card.names])

    def _meet(self, card: Card) -> list[RemoteNode]:
        """Make the nodes of clients that were not there before, and return them."""
        new = [name for name in card.names if name not in self._nodes]
        known = read_table(self._addresses, NODE_LINE) if isinstance(self._addresses, Path) else self._addresses
        if missing := [name for name in new if name not in known]:
            raise FedSPMError(
                f"there is no address of the node of {missing[0]!r}; nodes.toml needs one line per client"
            )
        made = [RemoteNode(name, known[name], self._transport, self.deadline / 2) for name in new]
        self._nodes |= {node.name: node for node in made}
        return made

    # -- the service -------------------------------------------------------------------------------------------------

    def clients(self) -> list[dict[str, Any]]:
        """Name, share of the rows and health of every client; also sets the gauge of nodes that are up."""
        card: Card = self.current.model.card
        found = []
        for name, count, node in zip(card.names, card.counts, self.dispatcher.nodes, strict=True):
            self.metrics.up.labels(name).set(node.up)
            found.append(
                {
                    "client": name,
                    "rows": count,
                    "share": count / sum(card.counts),
                    "up": node.up,
                    "trouble": node.trouble,
                    "milliseconds": None if node.latency is None else round(1000 * node.latency, 1),
                }
            )
        return found

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """While the app runs: watch the nodes, and take up a new bundle once all nodes that are up have it."""
        waiting_for = ""

        async def ready(model: RouterModel) -> bool:
            nonlocal waiting_for
            try:
                tasks.extend(asyncio.create_task(node.watch()) for node in self._meet(model.card))
            except FedSPMError as error:
                if str(error) != waiting_for:
                    log.warning("the new bundle is not used yet: %s", error)
                waiting_for = str(error)
                return False
            return await self._dispatcher_of(model.card).have(model.card.version)

        await self.dispatcher.have(self.current.model.card.version)  # nobody is called up before they were asked
        tasks = [asyncio.create_task(node.watch()) for node in self._nodes.values()]
        tasks.append(asyncio.create_task(self.current.watch(ready)))
        yield
        self.stopping = True
        for task in tasks:
            task.cancel()
        await self._transport.close()
        self._worker.shutdown()
        self._readers.shutdown()


def _rows(question: Question) -> int:
    return len(question.x)


def routed_by_model(questions: list[Question]) -> list[RoutedQuery]:
    """Those of one model are routed together; there are two while a bundle is swapped in."""
    found: dict[int, RoutedQuery] = {}
    for model in {id(question.model): question.model for question in questions}.values():
        mine = [question for question in questions if question.model is model]
        x = mine[0].x if len(mine) == 1 else torch.cat([question.x for question in mine])
        parts = model.route(x).split([len(question.x) for question in mine])
        found |= {id(question): RoutedQuery(model, part) for question, part in zip(mine, parts, strict=True)}
    return [found[id(question)] for question in questions]


def _require_finite(found: Tensor, what: str) -> None:
    try:
        require_finite_answers(found, what)
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error


def _data_url(x: Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_png(x)).decode()
