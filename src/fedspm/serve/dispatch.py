"""Whom the router asks: the best client's node first, the next best if it is down or slow.

NumPy works out who gets which row: on a few rows one of its calls takes a microsecond, one of PyTorch's ten.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import ValidationError
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.serve.batching import Batcher
from fedspm.serve.bundle import TENSORS, packed_rows, unpack
from fedspm.serve.http.problem import HTTPProblem
from fedspm.serve.node import AT_ONCE, VERSION, Health
from fedspm.serve.routing_result import RoutingResult
from fedspm.serve.transport import NodeFailed, Transport

PROBE_EVERY = 2.0  # seconds between two looks at a node; queries themselves show sooner that one is gone
PROBE_DOWN_EVERY = 0.25
PROBE_PATIENCE = 2.0
PATIENT_SHARE = 0.75  # of the time that a node is given; a query that waited less in vain does not mark it as down
TRIED = -1.0  # in the place of a posterior: this client has failed for this row
LONGEST_REASON = 200  # characters of what a node says that go on to the log
SMALLEST_SHARE = 1e-3  # a client with less of the posterior is not asked for a blend
log = logging.getLogger("fedspm.serve")

RowNumbers = Int[np.ndarray, " _"]  # which rows of a query


@dataclass(frozen=True)
class Question:
    """Some rows of a query. `rows` holds their numbers, so that they are copied only once, when they are sent."""

    version: str
    x: Tensor
    features: Tensors
    rows: RowNumbers


class RemoteNode:
    """One node as the router sees it. At most one batch is on its way; what comes meanwhile is the next."""

    def __init__(self, name: str, url: str, transport: Transport, patience: float):
        self.name = name
        self.up = True
        self.trouble: str | None = None
        self.versions: list[str] = []
        self.latency: float | None = None  # seconds of the last probe
        self._url = url.rstrip("/")
        self._transport = transport
        self._patience = patience
        self._batcher = Batcher(self._post, lambda question: len(question.rows), AT_ONCE)

    async def ask(self, question: Question, patience: float) -> Float[np.ndarray, "n k"] | None:
        """Class probabilities, or None if the node has failed or was too slow."""
        try:
            async with asyncio.timeout(patience):
                return await self._batcher.ask(question)
        except NodeFailed as error:
            self._down(str(error))
        except TimeoutError:
            if patience > PATIENT_SHARE * self._patience:
                self._down(f"no answer within {patience:.2f} seconds")
        return None

    async def _post(self, questions: list[Question]) -> list[np.ndarray]:
        answers = [await self._post_version(version, questions) for version in {each.version for each in questions}]
        return [next(answer[id(each)] for answer in answers if id(each) in answer) for each in questions]

    async def _post_version(self, version: str, questions: list[Question]) -> dict[int, np.ndarray]:
        mine = [each for each in questions if each.version == version]
        rows = [each.rows for each in mine]
        features = {name: gather_rows([each.features[name] for each in mine], rows) for name in mine[0].features}
        content = packed_rows(gather_rows([each.x for each in mine], rows), features)
        headers = {"content-type": TENSORS, VERSION: version}
        reply = await self._send("POST", "/v1/answer", self._patience, content, headers)
        ends = np.cumsum([len(each.rows) for each in mine])
        try:
            probabilities: np.ndarray = unpack(reply)["probabilities"].float().numpy()
            if probabilities.ndim != 2 or len(probabilities) != ends[-1]:
                raise FedSPMError(f"{ends[-1]} rows were asked for")
        except (FedSPMError, KeyError) as error:
            raise NodeFailed("the node answered something else than the probabilities of these rows") from error
        return dict(zip(map(id, mine), np.split(probabilities, ends[:-1]), strict=True))

    async def _send(
        self, method: str, path: str, patience: float, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        status, reply = await self._transport.send(method, self._url + path, patience, content, headers)
        if status != HTTPStatus.OK:
            raise NodeFailed(f"the node refused ({status}): {_reason(reply)}")
        return reply

    async def probe(self) -> None:
        """See how the node is. Whatever goes wrong, it is down: a probe that raised would be its last."""
        began = time.perf_counter()
        try:
            self.versions = (await self._health()).versions
        except NodeFailed as error:
            return self._down(str(error))
        except Exception as error:
            return self._down(f"the probe failed: {error!r}")
        if not self.up:
            log.warning("node %s is back", self.name)
        self.up, self.trouble = True, None
        self.latency = time.perf_counter() - began

    async def _health(self) -> Health:
        """What the node says of itself, if it is the right one and would answer this router."""
        reply = await self._send("GET", "/healthz", PROBE_PATIENCE)
        try:
            health = Health.model_validate_json(reply)
        except ValidationError as error:
            raise NodeFailed(f"{self._url} does not answer as a node does") from error
        if health.client != self.name:
            raise NodeFailed(f"{self._url} is not the node of {self.name}")
        if not health.admitted:
            raise NodeFailed("the node does not accept the router's secret; start both with the same --secret")
        return health

    async def watch(self) -> None:
        """Probe it, for ever."""
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_EVERY if self.up else PROBE_DOWN_EVERY)

    def _down(self, why: str) -> None:
        if self.up:
            log.warning("node %s is down: %s", self.name, why)
        self.up, self.trouble = False, why
        self._batcher.abandon(NodeFailed(why))  # nobody waits for a node that is known to be gone


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of some rows, and whose they are."""

    probabilities: Float[np.ndarray, "n k"]
    weights: list[dict[int, float]]  # of each row: the clients that answered, and how much of the answer is theirs


class Dispatcher:
    """Asks the nodes of one bundle's clients."""

    def __init__(self, nodes: list[RemoteNode]):
        self.nodes = nodes  # in client order

    async def have(self, version: str) -> bool:
        """Do all nodes that are up have this version?"""
        await asyncio.gather(*(node.probe() for node in self.nodes))
        up = [node for node in self.nodes if node.up]
        return bool(up) and all(version in node.versions for node in up)

    async def best(self, version: str, x: Tensor, result: RoutingResult, deadline: float) -> Prediction:
        """Every row by its best client that answers. An attempt may take half of the time that is left."""
        untried = result.posterior.numpy().copy()
        probabilities: np.ndarray | None = None
        answered_by = np.full(len(x), -1)
        while len(waiting := np.flatnonzero(answered_by < 0)):
            left = deadline - time.monotonic()
            groups = _by_client(waiting, self._next(untried[waiting], left))
            asked = [self._ask(client, rows, version, x, result, left / 2) for client, rows in groups.items()]
            for (client, rows), answer in zip(groups.items(), await asyncio.gather(*asked), strict=True):
                untried[rows, client] = TRIED
                if answer is not None:
                    if probabilities is None:
                        probabilities = np.empty((len(x), answer.shape[1]), answer.dtype)
                    probabilities[rows] = answer
                    answered_by[rows] = client
        assert probabilities is not None
        return Prediction(probabilities, [{client: 1.0} for client in answered_by.tolist()])

    async def blend(self, version: str, x: Tensor, result: RoutingResult, deadline: float, top: int) -> Prediction:
        """Σ_i P(i | x) P_i(k | x) over the `top` likeliest clients that answer."""
        posterior = result.posterior.numpy()
        likeliest = np.argsort(-posterior, axis=1, kind="stable")[:, :top]
        wanted: Bool[np.ndarray, "n m"] = np.zeros(posterior.shape, dtype=bool)
        np.put_along_axis(wanted, likeliest, True, axis=1)
        wanted &= posterior >= SMALLEST_SHARE
        asked = [i for i in np.flatnonzero(wanted.any(0)).tolist() if self.nodes[i].up]
        chosen = [np.flatnonzero(wanted[:, i]) for i in asked]
        patience = (deadline - time.monotonic()) / 2
        jobs = [self._ask(i, rows, version, x, result, patience) for i, rows in zip(asked, chosen, strict=True)]
        parts: list[dict[int, np.ndarray]] = [{} for _ in range(len(x))]
        for i, rows, answer in zip(asked, chosen, await asyncio.gather(*jobs), strict=True):
            if answer is not None:
                for row, said in zip(rows.tolist(), answer, strict=True):
                    parts[row][i] = said
        missing = [row for row, part in enumerate(parts) if not part]
        if missing:
            rest = await self.best(version, x[missing], result.without_novelty(missing), deadline)
            for row, answer, who in zip(missing, rest.probabilities, rest.weights, strict=True):
                parts[row] = dict.fromkeys(who, answer)
        weights = [_shares({i: float(posterior[row, i]) for i in part}) for row, part in enumerate(parts)]
        mixed = [sum(weights[row][i] * answer for i, answer in part.items()) for row, part in enumerate(parts)]
        return Prediction(np.stack(mixed), weights)

    async def _ask(
        self, client: int, rows: RowNumbers, version: str, x: Tensor, result: RoutingResult, patience: float
    ) -> np.ndarray | None:
        """One client's class probabilities of these rows, asked for in pieces that a node takes; None if it failed."""
        pieces = [rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE)]
        asked = [self.nodes[client].ask(Question(version, x, result.features, piece), patience) for piece in pieces]
        answers = [answer for answer in await asyncio.gather(*asked) if answer is not None]
        return np.concatenate(answers) if len(answers) == len(pieces) else None

    def _next(self, untried: Float[np.ndarray, "n m"], left: float) -> Int[np.ndarray, " n"]:
        """The likeliest client that was not tried: one that is up, or else one that may have come back."""
        up = np.array([node.up for node in self.nodes])
        preferred = np.where(untried < 0, untried, untried + 2 * up)
        exhausted = bool((preferred.max(1) < 0).any())
        if exhausted or left <= 0:
            down = ", ".join(node.name for node in self.nodes if not node.up) or "none"
            why = "no node could answer" if exhausted else "no node answered in time"
            raise HTTPProblem(503, f"{why} (down: {down}); try again later", {"retry-after": "1"})
        client: np.ndarray = preferred.argmax(1)
        return client


def _reason(reply: bytes) -> str:
    """The sentence of a node that refused, on one line."""
    try:
        return " ".join(str(json.loads(reply)["error"]).split())[:LONGEST_REASON]
    except (ValueError, LookupError, TypeError, RecursionError):
        return "no reason given"


def gather_rows(tensors: list[Tensor], rows: list[RowNumbers]) -> Tensor:
    """The given rows of each tensor, one after the other. They are copied once, in the order of memory: images are
    channels last, and plain indexing would copy them pixel by pixel."""
    images = tensors[0].ndim == 4
    stored = [each.permute(0, 2, 3, 1) if images else each for each in tensors]
    found = stored[0].new_empty(sum(map(len, rows)), *stored[0].shape[1:])
    for each, chosen, place in zip(stored, rows, found.split([len(each) for each in rows]), strict=True):
        torch.index_select(each, 0, torch.from_numpy(chosen), out=place)
    return found.permute(0, 3, 1, 2) if images else found


def _by_client(rows: RowNumbers, client: Int[np.ndarray, " _"]) -> dict[int, RowNumbers]:
    """The rows of every client that has some."""
    return {i: rows[client == i] for i in np.unique(client).tolist()}


def _shares(weights: dict[int, float]) -> dict[int, float]:
    """Weights scaled to sum to one; equal shares if they are all zero."""
    total = sum(weights.values())
    return {client: weight / total if total else 1 / len(weights) for client, weight in weights.items()}
