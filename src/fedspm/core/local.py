"""What happens at a client: its rows in batches, and the one SGD loop of the project."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim.sgd import sgd

from fedspm.core.replies import Tensors
from fedspm.errors import TrainingFailed
from fedspm.randomness import torch_generator

CHUNK = 256  # rows that are looked at together where there is nothing to learn


@dataclass(frozen=True)
class Batch:
    """Rows carry their numbers, so that a responsibility cannot meet the wrong sample."""

    x: Float[Tensor, "b *shape"]
    y: Int[Tensor, " b"]
    row: Int[Tensor, " b"]


@dataclass(frozen=True)
class Client:
    """What a client step sees: one client's rows, its private state, and where in training it is."""

    name: str
    index: int
    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, " n"]
    private: Tensors
    round: int
    seed: int

    @property
    def n(self) -> int:
        return len(self.y)

    def generator(self, step: str) -> torch.Generator:
        """Derived from (seed, client name, round, step): the same on every engine and after every crash."""
        return torch_generator(self.seed, self.name, self.round, step)

    def batches(self, step: str, size: int, steps: int) -> Iterator[Batch]:
        """`steps` random batches: permutations of all rows, one after the other, cut into pieces."""
        if steps == 0:
            return
        size = min(size, self.n)
        generator = self.generator(step)
        passes = -(-steps * size // self.n)
        order = torch.cat([torch.randperm(self.n, generator=generator) for _ in range(passes)]).to(self.y.device)
        for row in order[: steps * size].view(steps, size):
            yield Batch(self.x[row], self.y[row], row)


def chunks(x: Tensor, size: int = CHUNK) -> Iterator[Tensor]:
    """All rows in order, in pieces whose activations stay in the cache. Views, not copies."""
    yield from x.split(size)


def laid_out_like(slope: Tensor, leaf: Tensor) -> Tensor:
    """The fused step walks through memory: a gradient must lie there as its parameter does."""
    return slope if slope.stride() == leaf.stride() else torch.empty_like(leaf).copy_(slope)


def minimise(
    parameters: Mapping[str, Tensor],
    objective: Callable[[Tensors, Batch], Tensor],
    batches: Iterable[Batch],
    *,
    learning_rate: float,
    momentum: float,
    fixed: Collection[str] = (),
    scale: Mapping[str, Tensor] | None = None,
) -> Tensors:
    """Local SGD with momentum that starts at zero: d ← μ d + g, φ ← φ − η d.

    `objective` is a mean over the batch. Names in `fixed` are handed to it but not descended (buffers of batch
    normalisation, which it updates in place). `scale` multiplies the gradient of the descended tensors it names. A
    tensor that a batch does not reach has g = 0 there, and goes on in its direction.

    PyTorch's SGD as a function: what the optimiser object does around it is a tenth of the time of a small network.
    """
    moving = {
        name: value.detach().clone().requires_grad_(name not in fixed and value.is_floating_point())
        for name, value in parameters.items()
    }
    leaves = {name: value for name, value in moving.items() if value.requires_grad}
    descended = list(leaves.values())
    directions: list[Tensor | None] = [None] * len(leaves)  # `sgd` fills them in
    fused = descended[0].device.type != "mps"
    loss = torch.zeros(())
    for batch in batches:
        loss = objective(moving, batch)
        found = torch.autograd.grad(loss, descended, materialize_grads=True)
        slopes = dict(zip(leaves, map(laid_out_like, found, descended), strict=True))
        for name, factor in (scale or {}).items():
            slopes[name] = slopes[name] * factor
        with torch.no_grad():
            sgd(
                descended,
                list(slopes.values()),
                directions,
                fused=fused,
                lr=learning_rate,
                momentum=momentum,
                weight_decay=0,
                dampening=0,
                nesterov=False,
                maximize=False,
            )
    finished = {name: value.detach() for name, value in moving.items()}
    total = sum((value.sum() for value in finished.values()), loss.detach())  # finite only if all of them are
    if not torch.isfinite(total):
        raise TrainingFailed("the loss or a parameter is not finite; lower the learning rate")
    return finished
