"""What a client step sees: the client's rows, its private state, and its own randomness."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.errors import TrainingFailed
from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.nn.sgd import Batch, Batches, LossRose, Solver, minimise

WEIGHT = "sample_weight"  # by which batches carry the weights of rows
Objective = Callable[[Tensors, Batch], Tensor]
SMALLER = 0.25  # of the learning rate, at every attempt at local steps
ATTEMPTS = 7
SAME = 0.9  # of a loss


@dataclass(frozen=True)
class Client:
    """What a client step sees: one client's rows, its private state, where in training it is, and who solves."""

    name: str
    index: int
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, " n"]
    private: Tensors
    round: int
    seed: int
    solver: Solver = minimise
    weight: Float[Tensor, " n"] | None = None  # of each row in the supervised loss; None: all weigh the same
    repeated: list[str] = field(default_factory=list, compare=False)  # local steps that were taken again, in this step
    component: Int[Tensor, " n"] | None = None  # the hidden one of each row, for a step that declares `truth`

    @property
    def n(self) -> int:
        return len(self.y)

    def generator(self, step: str) -> torch.Generator:
        """Derived from (seed, client name, round, step): the same on every engine and after every crash."""
        return torch_generator(self.seed, self.name, self.round, step)

    def weighted(self, objective: Objective, role: str) -> Objective:
        """What the predictor's steps descend: the loss of a row times its weight. The router's is left as it is:
        density ratios describe where rows come from, and a row that matters more does not come more often."""
        if self.weight is None or role != "predictor":
            return objective
        return lambda parameters, batch: objective(parameters, batch) * batch.extra[WEIGHT]

    def descend(
        self,
        step: str,
        parameters: Tensors,
        objective: Objective,
        batches: Batches,
        *,
        learning_rate: float,
        **options: Any,
    ) -> Tensors:
        """What the solver finds. Where it fails (`nn.sgd.minimise`), it begins again with a quarter of the rate, and
        that is said; nothing of it is sent, so it is the same on every engine and after every crash. A loss that is as
        high with a quarter of the rate did not rise by the steps: the last batches have harder rows. Fails only if the
        smallest steps too end at something that is not finite."""
        rate, high = learning_rate, math.inf
        for attempt in range(ATTEMPTS):
            try:
                return self.solver(parameters, objective, batches, learning_rate=rate, **options)
            except TrainingFailed as error:
                if isinstance(error, LossRose):
                    if error.now > SAME * high:
                        return error.finished
                    high = error.now
                if attempt + 1 == ATTEMPTS:
                    if isinstance(error, LossRose):  # finite, by steps as small as they get: noise can do that
                        return error.finished
                    raise
                rate *= SMALLER
                self.repeated.append(step)
                warnings.warn(
                    f"client {self.name!r}, round {self.round}, {step}: {error}; the local steps are taken again at a "
                    f"rate of {rate:.2g} instead of {learning_rate:.2g}",
                    stacklevel=2,
                )
        raise AssertionError

    def batches(self, step: str, size: int, steps: int, constants: Tensors | None = None, **extra: Tensor) -> Batches:
        """`steps` random batches: permutations of all rows, one after the other, cut into pieces."""
        for name, rows in extra.items():
            assert len(rows) == self.n, f"{name}: {len(rows)} rows of a client that has {self.n}"
        if self.weight is not None:
            extra[WEIGHT] = self.weight
        size = min(size, self.n)
        generator = self.generator(step)
        passes = -(-steps * size // self.n)
        turns = [torch.randperm(self.n, generator=generator) for _ in range(passes)] or [self.y.new_zeros(0)]
        order = torch.cat(turns).to(self.y.device)[: steps * size].view(steps, size)
        return Batches(self.x, self.y, order, torch.tensor(self.index), extra, constants or {})
