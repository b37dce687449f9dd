"""The weighted trimmed mean of every coordinate (Yin et al. 2018)."""

from jaxtyping import Float
from torch import Tensor

TRIMMED = 0.2  # share of the weight that is cut off at either end: more than one client of eight has


def trimmed_mean(values: Float[Tensor, "k p"], weights: Float[Tensor, "k p"]) -> Float[Tensor, " p"]:
    """The mean of what is left of each column when its lowest and its highest values are cut off, a share of the weight
    each; a value at the cut counts with the part of its weight that is inside."""
    ordered, order = values.sort(dim=0)
    weight = weights.gather(0, order)
    above = weight.cumsum(0)
    total = above[-1:]
    inside = above.clamp_max(total * (1 - TRIMMED)) - (above - weight).clamp_min(total * TRIMMED)
    kept = inside.clamp_min(0)
    return (kept * ordered).sum(0) / kept.sum(0)
