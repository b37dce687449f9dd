"""Multi-Krum: the mean of the updates that lie closest to their neighbours (Blanchard et al. 2017)."""

import torch
from jaxtyping import Float
from torch import Tensor

LIARS = 0.2  # share of the clients that may lie, at least one: f


def multi_krum(values: Float[Tensor, "k p"], weights: Float[Tensor, "k p"]) -> Float[Tensor, " p"]:
    """The weighted mean of the k − f updates with the lowest scores; a score is the sum of the squared distances to the
    k − f − 2 nearest others. Coordinates in which one of two clients has no say are not compared."""
    count = len(values)
    liars = max(1, int(LIARS * count))
    if count < liars + 3:  # nobody has a neighbour to be compared with
        return (weights * values).sum(0) / weights.sum(0)
    known = (weights > 0).to(values.dtype)
    squares = (known * values.square()) @ known.T  # of client i where j has a value too
    apart = squares + squares.T - 2 * (known * values) @ (known * values).T
    apart = apart.fill_diagonal_(torch.inf)
    scores = apart.sort(dim=1).values[:, : count - liars - 2].sum(1)
    kept = scores.argsort(stable=True)[: count - liars]
    weight = weights[kept]
    return (weight * values[kept]).sum(0) / weight.sum(0).clamp_min(1e-300)
