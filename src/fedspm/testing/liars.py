"""Clients that lie, to see what a rule of `robust` makes of them: one small function per lie.

    with LyingEngine(federation, liars={"client-3": LIES["update × 10"]}, seed=0) as engine: ...

A lie changes what the server reads of a client: its reply to a step, or the labels that the client trains on. The
step itself is taken honestly, and nothing that the liar's own copy of this package checks holds it back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.steps import Step
from fedspm.federated.transforms import updates
from fedspm.federated.uploads import Shares
from fedspm.nn.sgd import Solver, minimise


@dataclass(frozen=True)
class Said:
    """What a client was about to send: its update and its rows, the step that it answers and what it got for it."""

    step: Step
    client: str
    index: int
    round: int
    shared: Tensors
    update: Tensors  # the shared parameters as it moved them
    memory: dict[str, Any]  # of this liar, over all rounds

    def changes(self) -> Tensors:
        """Δ_i = φ_i − φ"""
        return {name: value - self.shared[name] for name, value in self.update.items()}

    def moved_by(self, change: Tensors) -> Tensors:
        """φ + Δ"""
        return {name: self.shared[name] + value for name, value in change.items()}


@dataclass(frozen=True)
class Lie:
    """One way to lie: about the update, its weight, the shares of rows, or with labels that are not the client's."""

    update: Callable[[Said], Tensors] | None = None
    weight: float = 1.0  # by which the weight of a mean is multiplied
    shares: Callable[[Tensor], Tensor] | None = None
    labels: Callable[[Tensor, int], Tensor] | None = None  # labels and how many classes there are


# -- lies ------------------------------------------------------------------------------------------------------------


def scaled(factor: float) -> Lie:
    """Δ_i · factor: one that is negative turns it around."""
    return Lie(lambda said: said.moved_by({name: factor * value for name, value in said.changes().items()}))


def filled(number: float) -> Lie:
    """Every parameter is the same number."""
    return Lie(lambda said: {name: torch.full_like(value, number) for name, value in said.update.items()})


def noise(said: Said) -> Tensors:
    """A random change, each tensor as long as the honest one."""
    generator = torch_generator(0, said.client, said.round, "noise of a liar")
    drawn = {}
    for name, change in sorted(said.changes().items()):
        value = torch.randn(change.shape, generator=generator)
        drawn[name] = value * (change.norm() / value.norm().clamp_min(1e-12))
    return said.moved_by(drawn)


def negated(said: Said) -> Tensors:
    """−φ_i: the parameters, not their change."""
    return {name: -value for name, value in said.update.items()}


def replayed(said: Said) -> Tensors:
    """The parameters that it sent in its first round, for ever."""
    kept: Tensors = said.memory.setdefault(said.step.name, dict(said.update))
    return kept


def rows_moved(name: str, own: bool, move: Callable[[Tensor], Tensor]) -> Lie:
    """Rows of a tensor that has one per client: the liar's own, or those of all others."""

    def lie(said: Said) -> Tensors:
        if name not in said.update:
            return said.update
        value = said.update[name].clone()
        chosen = torch.arange(len(value)) == said.index
        chosen = chosen if own else ~chosen
        value[chosen] = move(value[chosen])
        return said.update | {name: value}

    return Lie(lie)


def on_one_component(shares: Tensor) -> Tensor:
    """All rows are of the last component."""
    return torch.zeros_like(shares).index_fill_(0, torch.tensor([len(shares) - 1]), float(shares.sum()))


def negative(shares: Tensor) -> Tensor:
    """They add up to n_i, and one of them is below zero."""
    moved = torch.zeros_like(shares)
    moved[0], moved[-1] = 2 * shares.sum(), -shares.sum()
    return moved


LIES: dict[str, Lie] = {
    "update × 10": scaled(10),
    "update × 4": scaled(4),
    "sign flip": scaled(-1),
    "sign flip × 4": scaled(-4),
    "sign flip × 10": scaled(-10),
    "parameters negated": Lie(negated),
    "parameters of 9e14": filled(9e14),
    "NaN": filled(float("nan")),
    "infinity": filled(float("inf")),
    "noise of the honest length": Lie(noise),
    "zero update": scaled(0),
    "first update for ever": Lie(replayed),
    "weight × 10": Lie(weight=10),
    "τ beyond n": Lie(shares=lambda shares: 10 * shares),
    "τ on one component": Lie(shares=on_one_component),
    "τ negative": Lie(shares=negative),
    "own γ + 100": rows_moved("tilt.gamma", True, lambda rows: rows + 100),
    "own ξ × 100": rows_moved("tilt.xi", True, lambda rows: 100 * rows),
    "others' γ − 100": rows_moved("tilt.gamma", False, lambda rows: rows - 100),
    "labels turned around": Lie(labels=lambda y, classes: classes - 1 - y),
}


# -- who tells them --------------------------------------------------------------------------------------------------


@dataclass
class Liar:
    """A lie, and what its liar remembers of what it said."""

    lie: Lie
    memory: dict[str, Any] = field(default_factory=dict)

    def tell(self, step: Step, client: str, index: int, round: int, shared: Tensors, reply: Reply) -> Reply:
        """The reply as the server is to read it."""
        if isinstance(reply, Combined):
            mean = self.tell(step, client, index, round, shared, reply.mean)
            rows = self.tell(step, client, index, round, shared, reply.rows)
            assert isinstance(mean, Mean)
            assert isinstance(rows, PerClient)
            return Combined(mean, rows)
        if isinstance(reply, PerClient):
            row = reply.rows.get(client, {})
            said = Said(step, client, index, round, shared, updates(step, row), self.memory)
            return PerClient({client: row | self._update(said) | self._shares(step, row)})
        weight, tensors = reply.as_sent()
        said = Said(step, client, index, round, shared, updates(step, tensors), self.memory)
        if not said.update:  # a sum, not a mean
            return reply
        return Mean(weight * self.lie.weight, **(tensors | self._update(said)))

    def _update(self, said: Said) -> Tensors:
        return self.lie.update(said) if self.lie.update and said.update else {}

    def _shares(self, step: Step, row: Tensors) -> Tensors:
        if self.lie.shares is None:
            return {}
        return {name: self.lie.shares(value) for name, value in row.items() if isinstance(step.upload(name), Shares)}


class LyingEngine(LocalEngine):
    """An in-process engine some of whose clients lie."""

    def __init__(self, federation: Federation, *, liars: Mapping[str, Lie], **options: Any):
        super().__init__(federation, **options)
        self.liars = {name: Liar(lie) for name, lie in liars.items()}

    def read(self, algorithm: Algorithm, step: Step, client: Client, shared: Tensors, reply: Reply) -> Reply:
        honest = super().read(algorithm, step, client, shared, reply)
        liar = self.liars.get(client.name)
        if liar is None or step.when != "round":
            return honest
        return liar.tell(step, client.name, client.index, client.round, shared, honest)

    def _client(
        self, i: int, private: Tensors, solver: Solver = minimise, rows: str = "train", truth: bool = False
    ) -> Client:
        client = super()._client(i, private, solver, rows, truth)
        liar = self.liars.get(client.name)
        if liar is None or liar.lie.labels is None or rows != "train":
            return client
        return replace(client, y=liar.lie.labels(client.y, len(self.federation.classes)))
