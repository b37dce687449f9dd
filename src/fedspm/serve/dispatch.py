"""Whom the router asks: the best client's node first, the next best if it is down or slow."""

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.core.replies import Tensors
from fedspm.errors import FedSPMError
from fedspm.serve.batching import Batcher
from fedspm.serve.bundle import Sight, packed_rows, unpack
from fedspm.serve.guard import Refused
from fedspm.serve.node import AT_ONCE, TENSORS, VERSION
from fedspm.serve.transport import NodeFailed, Transport

PROBE_EVERY = 2.0  # seconds between two looks at a node; queries themselves show sooner that one is gone
PROBE_DOWN_EVERY = 0.25
PROBE_PATIENCE = 2.0
LIGHTEST = 1e-3  # a client with less of the posterior is not asked for a blend
log = logging.getLogger("fedspm.serve")


@dataclass(frozen=True)
class Question:
    version: str
    x: Tensor
    features: Tensors


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
        self._batcher = Batcher(self._post, lambda question: len(question.x), AT_ONCE)

    async def ask(self, question: Question, patience: float) -> Float[Tensor, "n k"] | None:
        """Class probabilities, or None if the node has failed or was too slow."""
        try:
            async with asyncio.timeout(patience):
                return await self._batcher.ask(question)
        except NodeFailed as error:
            self._down(str(error))
        except TimeoutError:
            self._down(f"no answer within {patience:.2f} seconds")
        return None

    async def _post(self, questions: list[Question]) -> list[Tensor]:
        answers = [await self._post_version(version, questions) for version in {each.version for each in questions}]
        return [next(answer[id(each)] for answer in answers if id(each) in answer) for each in questions]

    async def _post_version(self, version: str, questions: list[Question]) -> dict[int, Tensor]:
        mine = [each for each in questions if each.version == version]
        features = {name: torch.cat([each.features[name] for each in mine]) for name in mine[0].features}
        content = packed_rows(torch.cat([each.x for each in mine]), features)
        headers = {"content-type": TENSORS, VERSION: version}
        status, reply = await self._transport.send("POST", f"{self._url}/v1/answer", self._patience, content, headers)
        if status != HTTPStatus.OK:
            raise NodeFailed(f"the node refused: {status}")
        try:
            probabilities: Tensor = unpack(reply)["probabilities"]
        except (FedSPMError, KeyError) as error:
            raise NodeFailed("the node answered something else than probabilities") from error
        return dict(zip(map(id, mine), probabilities.split([len(each.x) for each in mine]), strict=True))

    async def probe(self) -> None:
        began = time.perf_counter()
        try:
            status, content = await self._transport.send("GET", f"{self._url}/healthz", PROBE_PATIENCE)
            health: dict[str, Any] = json.loads(content) if status == HTTPStatus.OK else {}
        except (NodeFailed, ValueError) as error:
            return self._down(str(error))
        if health.get("client") != self.name:
            return self._down(f"{self._url} is not the node of {self.name}")
        if not self.up:
            log.warning("node %s is back", self.name)
        self.up, self.trouble = True, None
        self.versions = list(health.get("versions", []))
        self.latency = time.perf_counter() - began

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
class Answered:
    probabilities: Float[Tensor, "n k"]
    weights: list[dict[int, float]]  # a row: the clients that answered, and how much of the answer is theirs


class Dispatcher:
    def __init__(self, nodes: list[RemoteNode]):
        self.nodes = nodes  # in client order

    async def have(self, version: str) -> bool:
        """Do all nodes that are up have this version?"""
        await asyncio.gather(*(node.probe() for node in self.nodes))
        up = [node for node in self.nodes if node.up]
        return bool(up) and all(version in node.versions for node in up)

    async def best(self, version: str, x: Tensor, sight: Sight, deadline: float) -> Answered:
        """Every row by its best client that answers. An attempt may take half of the time that is left."""
        order: list[list[int]] = sight.posterior.argsort(dim=1, descending=True).tolist()
        probabilities: Tensor | None = None
        answered_by = [-1] * len(order)
        tried: list[set[int]] = [set() for _ in order]
        while -1 in answered_by:
            left = deadline - time.monotonic()
            groups: dict[int, list[int]] = {}
            for row in (row for row, client in enumerate(answered_by) if client < 0):
                groups.setdefault(self._next(order[row], tried[row], left), []).append(row)
            asked = [self._ask(client, rows, version, x, sight, left / 2) for client, rows in groups.items()]
            for (client, rows), answer in zip(groups.items(), await asyncio.gather(*asked), strict=True):
                if answer is not None:
                    probabilities = (
                        answer.new_empty(len(x), answer.shape[1]) if probabilities is None else probabilities
                    )
                    probabilities[rows] = answer
                for row in rows:
                    tried[row].add(client)
                    answered_by[row] = -1 if answer is None else client
        assert probabilities is not None
        return Answered(probabilities, [{client: 1.0} for client in answered_by])

    async def blend(self, version: str, x: Tensor, sight: Sight, deadline: float, top: int) -> Answered:
        """Σ_i P(i | x) P_i(k | x) over the `top` likeliest clients that answer."""
        weight, client = sight.posterior.topk(min(top, len(self.nodes)), dim=1)
        asked = [i for i in client[weight >= LIGHTEST].unique().tolist() if self.nodes[i].up]
        chosen = [((client == i) & (weight >= LIGHTEST)).any(1).nonzero()[:, 0].tolist() for i in asked]
        patience = (deadline - time.monotonic()) / 2
        jobs = [self._ask(i, rows, version, x, sight, patience) for i, rows in zip(asked, chosen, strict=True)]
        parts: list[dict[int, Tensor]] = [{} for _ in range(len(x))]
        for i, rows, answer in zip(asked, chosen, await asyncio.gather(*jobs), strict=True):
            for place, row in enumerate(rows if answer is not None else ()):
                assert answer is not None
                parts[row][i] = answer[place]
        missing = [row for row, part in enumerate(parts) if not part]
        if missing:
            rest = await self.best(version, x[missing], _rows(sight, missing), deadline)
            for row, answer, who in zip(missing, rest.probabilities, rest.weights, strict=True):
                parts[row] = dict.fromkeys(who, answer)
        weights = [_shares({i: float(sight.posterior[row, i]) for i in part}) for row, part in enumerate(parts)]
        mixed = [sum(weights[row][i] * answer for i, answer in part.items()) for row, part in enumerate(parts)]
        return Answered(torch.stack([torch.as_tensor(each) for each in mixed]), weights)

    async def _ask(
        self, client: int, rows: list[int], version: str, x: Tensor, sight: Sight, patience: float
    ) -> Tensor | None:
        whole = len(rows) == len(x)
        features = sight.features if whole else {name: value[rows] for name, value in sight.features.items()}
        return await self.nodes[client].ask(Question(version, x if whole else taken(x, rows), features), patience)

    def _next(self, order: list[int], tried: set[int], left: float) -> int:
        """The likeliest client that was not tried: one that is up, or else one that may have come back."""
        rest = [client for client in order if client not in tried]
        if not rest or left <= 0:
            down = ", ".join(node.name for node in self.nodes if not node.up) or "none"
            why = "no node could answer" if not rest else "no node answered in time"
            raise Refused(503, f"{why} (down: {down}); try again later", {"retry-after": "1"})
        return next((client for client in rest if self.nodes[client].up), rest[0])


def taken(x: Float[Tensor, "n *shape"], rows: list[int]) -> Float[Tensor, "some *shape"]:
    """x[rows], row by row as they lie in memory: images are channels last, where plain indexing goes pixel by pixel."""
    chosen = torch.tensor(rows)
    if x.ndim != 4:
        return x.index_select(0, chosen)
    return (
        x.permute(0, 2, 3, 1).flatten(1).index_select(0, chosen).view(-1, *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)
    )


def _rows(sight: Sight, rows: list[int]) -> Sight:
    features = {name: value[rows] for name, value in sight.features.items()}
    return Sight(features, sight.posterior[rows], sight.components[rows], None)


def _shares(weights: dict[int, float]) -> dict[int, float]:
    total = sum(weights.values()) or 1.0
    return {client: weight / total for client, weight in weights.items()}
