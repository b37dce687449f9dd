"""What a client step sees: the client's rows, its private state, and its own randomness."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.nn.sgd import Batches, Solver, minimise


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
    component: Int[Tensor, " n"] | None = None  # the hidden one of each row, for a step that declares `truth`

    @property
    def n(self) -> int:
        return len(self.y)

    def generator(self, step: str) -> torch.Generator:
        """Derived from (seed, client name, round, step): the same on every engine and after every crash."""
        return torch_generator(self.seed, self.name, self.round, step)

    def batches(self, step: str, size: int, steps: int, constants: Tensors | None = None, **extra: Tensor) -> Batches:
        """`steps` random batches: permutations of all rows, one after the other, cut into pieces."""
        for name, rows in extra.items():
            assert len(rows) == self.n, f"{name}: {len(rows)} rows of a client that has {self.n}"
        size = min(size, self.n)
        generator = self.generator(step)
        passes = -(-steps * size // self.n)
        turns = [torch.randperm(self.n, generator=generator) for _ in range(passes)] or [self.y.new_zeros(0)]
        order = torch.cat(turns).to(self.y.device)[: steps * size].view(steps, size)
        return Batches(self.x, self.y, order, torch.tensor(self.index), extra, constants or {})
