"""The weighted median of every coordinate (Yin et al. 2018)."""

import torch
from jaxtyping import Float
from torch import Tensor


def weighted_median(values: Float[Tensor, "k p"], weights: Float[Tensor, "k p"]) -> Float[Tensor, " p"]:
    """The smallest v of each column with Σ_{v_i ≤ v} w_i ≥ ½ Σ w_i, or halfway to the next one where it is equal."""
    ordered, order = values.sort(dim=0)
    below = weights.gather(0, order).cumsum(0)
    half = below[-1:] / 2
    lower = (below >= half * (1 - 1e-12)).to(torch.uint8).argmax(0, keepdim=True)
    upper = (below > half * (1 + 1e-12)).to(torch.uint8).argmax(0, keepdim=True)
    return (ordered.gather(0, lower) + ordered.gather(0, upper))[0] / 2
