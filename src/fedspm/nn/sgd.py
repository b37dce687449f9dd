"""The one SGD loop of the project, and the batches that it walks through."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim.sgd import sgd

from fedspm.base.errors import TrainingFailed
from fedspm.base.tensors import Tensors

SHARP = 2.0  # by how much a loss may rise over the local steps of a round, and by how many times itself
CHUNK = 256  # rows that are looked at together where there is nothing to learn
Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Batch:
    """Rows carry what belongs to them, so that a responsibility cannot meet the wrong sample."""

    x: Float[Tensor, "b *shape"]
    y: Int[Tensor, " b"]
    row: Int[Tensor, " b"]  # their numbers
    client: Int[Tensor, ""] = field(default_factory=lambda: torch.tensor(0))  # whose they are
    extra: Tensors = field(default_factory=dict)  # by name, one entry per row
    constants: Tensors = field(default_factory=dict)  # by name, the same for all rows of the client


@dataclass(frozen=True)
class Batches:
    """Rows of a client in batches, those that `order` numbers."""

    x: Float[Tensor, "n *shape"]
    y: Int[Tensor, " n"]
    order: Int[Tensor, "steps b"]
    client: Int[Tensor, ""]
    extra: Tensors
    constants: Tensors

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        for row in self.order:
            extra = {name: value[row] for name, value in self.extra.items()}
            yield Batch(self.x[row], self.y[row], row, self.client, extra, self.constants)


def laid_out_like(slope: Tensor, leaf: Tensor) -> Tensor:
    """The fused step walks through memory: a gradient must lie there as its parameter does."""
    return slope if slope.stride() == leaf.stride() else torch.empty_like(leaf).copy_(slope)


def minimise(
    parameters: Mapping[str, Tensor],
    objective: Callable[[Tensors, Piece], Tensor],
    batches: Iterable[Piece],
    *,
    learning_rate: float,
    momentum: float,
    fixed: Collection[str] = (),
    scale: Mapping[str, Tensor] | None = None,
    apart: bool = False,
) -> Tensors:
    """Local SGD with momentum that starts at zero: d ← μ d + g, φ ← φ − η d.

    `objective` answers one loss per row; what is descended is their mean. Or, with `apart`, one loss for each of many
    problems that have no parameter in common: what is descended is their sum. Names in `fixed` are handed to it but not
    descended (frozen parameters, and buffers of batch normalisation, which it updates in place). `scale` multiplies
    the gradient of the descended tensors it names. A tensor that a batch does not reach has g = 0 there, and goes on
    in its direction.

    It fails where it ends at something that is not finite, or at a loss (the mean over the last quarter of the steps)
    that has risen sharply above that of the first quarter.

    PyTorch's SGD as a function: what the optimiser object does around it is a tenth of the time of a small network.
    """
    moving = {
        name: value.detach().clone().requires_grad_(name not in fixed and value.is_floating_point())
        for name, value in parameters.items()
    }
    leaves = {name: value for name, value in moving.items() if value.requires_grad}
    descended = list(leaves.values())
    directions: list[Tensor | None] = [None] * len(leaves)  # `sgd` fills them in
    fused = all(leaf.device.type != "mps" for leaf in descended)
    losses: list[Tensor] = []
    for batch in batches:
        loss = objective(moving, batch)
        loss = loss if apart else loss.mean()
        losses.append(loss.detach())
        if not leaves:  # all is frozen
            continue
        found = torch.autograd.grad(loss.sum() if apart else loss, descended, materialize_grads=True)
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
    require_descent(losses, finished)
    return finished


class LossRose(TrainingFailed):
    """Local steps ended at a loss far above the one they began with: by the steps, or by rows that are hard."""

    def __init__(self, was: float, now: float, finished: Tensors):
        super().__init__(f"the loss rose from {was:.3g} to {now:.3g}; lower the learning rate")
        self.now, self.finished = now, finished


def require_descent(losses: Sequence[Tensor], finished: Tensors) -> None:
    """Fail if a parameter or a loss is not finite, or if the loss has risen sharply."""
    total = sum((value.sum() for value in finished.values()), sum(losses[-1:], torch.zeros(())).sum())
    if not torch.isfinite(total):  # as it is only if all of them are
        raise TrainingFailed("the loss or a parameter is not finite; lower the learning rate")
    if not losses:
        return
    quarter = -(-len(losses) // 4)
    first, last = (torch.stack(list(part)).mean(0) for part in (losses[:quarter], losses[-quarter:]))
    risen = last - first - SHARP * first.abs().clamp_min(1)
    if (risen > 0).any() or risen.isnan().any():
        worst = risen.argmax()
        was, now = (float(part.flatten()[worst]) for part in (first, last))
        raise LossRose(was, now, finished)


@runtime_checkable
class Solver(Protocol):
    """`minimise`, or what does the same for many clients at once (`nn.vmap_solver`)."""

    def __call__(
        self,
        parameters: Tensors,
        objective: Callable[[Tensors, Batch], Tensor],
        batches: Batches,
        *,
        learning_rate: float,
        momentum: float,
        fixed: Collection[str] = ...,
        scale: Mapping[str, Tensor] | None = ...,
    ) -> Tensors: ...


def chunks(x: Tensor, size: int = CHUNK) -> Iterator[Tensor]:
    """All rows in order, in pieces whose activations stay in the cache. Views, not copies."""
    yield from x.split(size)
