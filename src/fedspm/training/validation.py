"""Validation rows: a stratified share of every client's training rows, held out for early stopping."""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import torch_generator
from fedspm.data.federation import Federation


def hold_out(federation: Federation, fraction: float, seed: int) -> tuple[Federation, Federation]:
    """The federation without its validation rows, and one whose test rows they are.

    Both train on the same rows. Test rows stay in the first alone, so that nobody who has the second can look at them.
    """
    if not 0 < fraction < 1:
        raise FedSPMError(f"validation_fraction must lie between 0 and 1, it is {fraction}")
    clients = zip(federation.names, federation.train, strict=True)
    split = [_split(part.y, fraction, torch_generator(seed, name, "early stopping")) for name, part in clients]
    if not any(len(held) for _, held in split):
        raise FedSPMError(
            f"validation_fraction = {fraction:g} holds out no row of any client, the largest has "
            f"{max(federation.counts)} training rows; choose a larger one"
        )
    train = tuple(part.take(kept) for part, (kept, _) in zip(federation.train, split, strict=True))
    held = tuple(part.take(rows) for part, (_, rows) in zip(federation.train, split, strict=True))
    truth = validation_truth = federation.truth
    if truth is not None:
        components = list(zip(truth.train, split, strict=True))
        truth = replace(truth, train=tuple(rows[kept] for rows, (kept, _) in components))
        validation_truth = replace(truth, test=tuple(rows[held] for rows, (_, held) in components))
    left = replace(federation, train=train, truth=truth)
    return left, replace(left, test=held, truth=validation_truth)


def _split(y: Int[Tensor, " n"], fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows to keep and rows to hold out, in order. Classes are held out in proportion, as far as whole rows allow; a
    class never loses its last training row, and a client keeps at least two."""
    order = torch.randperm(len(y), generator=generator)
    count = torch.bincount(y)
    wanted = fraction * count.double()
    quota = torch.minimum(wanted.floor().long(), (count - 1).clamp_min(0))
    left = min(round(fraction * len(y)), len(y) - 2) - int(quota.sum())
    for label in (wanted - wanted.floor()).argsort(descending=True, stable=True).tolist():
        if left > 0 and quota[label] < count[label] - 1:
            quota[label] += 1
            left -= 1
    held = torch.cat([order[y[order] == label][: int(n)] for label, n in enumerate(quota)])
    chosen = torch.zeros(len(y), dtype=torch.bool)
    chosen[held] = True
    return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]
