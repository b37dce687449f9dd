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
from fedspm.base.threads import one_core_threads
from fedspm.data.heterogeneity import own_name
from fedspm.data.images import encode_png
from fedspm.federated.evaluation import require_finite_answers
from fedspm.serve.batching import Batcher, Worker
from fedspm.serve.bundle import Card, RouterModel, Sight, load_router
from fedspm.serve.dispatch import Answered, Dispatcher, RemoteNode
from fedspm.serve.hot_reload import Current
from fedspm.serve.http.guard import Callers, Declined, Limits, read_table
from fedspm.serve.http.request_body import read_query
from fedspm.serve.metrics import RouterMetrics
from fedspm.serve.transport import Http, Transport

DEADLINE = 10.0  # seconds that an answer may take
ROUNDING = 1e-6  # of a share in single precision
LOOKED_AT_ONCE = 1024  # rows; many, so that each node gets a large part of them
WARNING = "this query resembles the data of no client; do not rely on the answer"
NODE_LINE = 'north = "https://north.example:8001"'
log = logging.getLogger("fedspm.serve")


@dataclass(frozen=True)
class How:
    """What a caller asked for besides the rows."""

    mode: Literal["best", "blend"] = "best"
    top: int = 3
    view: bool = False
    predict: bool = True


@dataclass(frozen=True)
class Looked:
    model: RouterModel
    sight: Sight


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
        encoders: Collection[str] = (),  # from outside this package, that may be imported
    ):
        self.current = Current(folder, partial(load_router, encoders=encoders))
        self.limits = limits or Limits()
        self.callers = Callers(tokens or {}, self.limits.rate)
        self.metrics = RouterMetrics()
        self.deadline = deadline
        self.stopping = False
        self._transport = transport or Http(secret, authority)
        self._addresses = nodes  # a file is read again when a bundle brings a client that is not known yet
        self._nodes: dict[str, RemoteNode] = {}
        self._meet(self.current.model.card)
        self._worker = Worker("look")
        self._readers = one_core_threads(2, "read")
        self._batcher = Batcher(self._look, len, LOOKED_AT_ONCE, self.metrics.batch_rows.observe)
        self._waiting = 0

    # -- one request -------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, how: How) -> dict[str, Any]:
        began = time.monotonic()
        query = await read_query(request, self.current.model.card, self.limits, self._readers)
        deadline = time.monotonic() + self.deadline  # a slow line is not the nodes' fault
        if self._waiting + len(query.x) > self.limits.waiting:
            raise Declined(503, f"{self._waiting} rows are waiting already; try again later", {"retry-after": "1"})
        self._waiting += len(query.x)
        self.metrics.waiting.set(self._waiting)
        try:
            looked = await self._batcher.ask(query.x)
            _require_finite(looked.sight.posterior, "P(client | x)")
            _require_finite(looked.sight.components, "P(component | x)")
            answered = await self._predict(query.x, looked, how, deadline) if how.predict else None
        finally:
            self._waiting -= len(query.x)
            self.metrics.waiting.set(self._waiting)
        answers = replies(looked, answered)
        self._count(answers)
        seconds = {"seconds": round(time.monotonic() - began, 6)}
        if not query.single:
            return {"answers": answers} | seconds
        view = {"view": _data_url(query.x[0])} if how.view and len(looked.model.card.shape) == 3 else {}
        return answers[0] | view | seconds

    async def _predict(self, x: Tensor, looked: Looked, how: How, deadline: float) -> Answered:
        version, nodes = looked.model.card.version, self._dispatcher_of(looked.model.card)
        if how.mode == "blend":
            answered = await nodes.blend(version, x, looked.sight, deadline, how.top)
        else:
            answered = await nodes.best(version, x, looked.sight, deadline)
        _require_finite(torch.from_numpy(answered.probabilities), "P(class | x)")
        return answered

    async def _look(self, questions: list[Tensor]) -> list[Looked]:
        return await self._worker.compute(sum(map(len, questions)), partial(self._compute, questions))

    def _compute(self, questions: list[Tensor]) -> list[Looked]:
        model, sizes = self.current.model, [len(x) for x in questions]
        sight = model.look(questions[0] if len(questions) == 1 else torch.cat(questions))
        if len(questions) == 1:
            return [Looked(model, sight)]
        names = list(sight.features)
        features = zip(*(sight.features[name].split(sizes) for name in names), strict=True)
        novelty = [None] * len(sizes) if sight.novelty is None else sight.novelty.split(sizes)
        parts = zip(features, sight.posterior.split(sizes), sight.components.split(sizes), novelty, strict=True)
        return [Looked(model, Sight(dict(zip(names, f, strict=True)), p, c, v)) for f, p, c, v in parts]

    def _count(self, answers: list[dict[str, Any]]) -> None:
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
        """Nodes of clients that were not there before."""
        new = [name for name in card.names if name not in self._nodes]
        known = read_table(self._addresses, NODE_LINE) if isinstance(self._addresses, Path) else self._addresses
        if missing := [name for name in new if name not in known]:
            raise FedSPMError(f"there is no address of the node of {missing[0]!r}; nodes.toml needs a line a client")
        made = [RemoteNode(name, known[name], self._transport, self.deadline / 2) for name in new]
        self._nodes |= {node.name: node for node in made}
        return made

    # -- the service -------------------------------------------------------------------------------------------------

    def clients(self) -> list[dict[str, Any]]:
        """Everybody's name, share and health."""
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
    async def living(self, app: FastAPI) -> AsyncIterator[None]:
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


def replies(looked: Looked, answered: Answered | None) -> list[dict[str, Any]]:
    """One reply a row: who was meant and who answered, what, and how sure the system is of both."""
    card, sight = looked.model.card, looked.sight
    labels = [str(label) for label in card.classes]
    meant = sight.posterior.argmax(1).tolist()
    who = meant if answered is None else [max(weights, key=weights.__getitem__) for weights in answered.weights]
    components = sight.components[torch.arange(len(who)), who].tolist()
    novelty = [None] * len(who) if sight.novelty is None else sight.novelty.tolist()
    found: list[dict[str, Any]] = []
    for row, posterior in enumerate(sight.posterior.tolist()):
        new = novelty[row]
        novel = None if new is None or card.false_alarms is None else new >= 1 - card.false_alarms - ROUNDING
        reply = {
            "client": card.names[meant[row]],
            "posterior": dict(zip(card.names, posterior, strict=True)),
            "components": components[row],
            "novel": novel,
            "novelty": new,
        }
        found.append(reply | ({"warning": WARNING} if novel else {}))
    if answered is not None:
        best = answered.probabilities.argmax(1).tolist()
        for row, probabilities in enumerate(answered.probabilities.tolist()):
            weights = answered.weights[row]
            found[row] |= {
                "answered_by": card.names[who[row]],
                "weights": {card.names[i]: weight for i, weight in weights.items()},
                "fallback": meant[row] not in weights,
                "prediction": card.classes[best[row]],
                "probabilities": dict(zip(labels, probabilities, strict=True)),
            }
            found[row] |= _meaning(card, found[row], best[row])
    return found


def _meaning(card: Card, reply: Mapping[str, Any], label: int) -> dict[str, Any]:
    """Where every client has label names of its own: what the prediction stands for in the likeliest component."""
    client, prediction = reply["answered_by"], reply["prediction"]
    if card.meanings is None or client not in card.meanings:
        return {}
    if len(reply["weights"]) > 1:
        return {"means": None, "in_words": f"{prediction}, a blend of clients with label names of their own"}
    components = reply["components"]
    known = card.meanings[client][components.index(max(components))]
    means = None if known is None else card.classes[known[label]]
    return {"means": means, "in_words": own_name(client, prediction, means)}


def _require_finite(found: Tensor, what: str) -> None:
    try:
        require_finite_answers(found, what)
    except FedSPMError as error:
        raise Declined(422, str(error)) from error


def _data_url(x: Tensor) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_png(x)).decode()
