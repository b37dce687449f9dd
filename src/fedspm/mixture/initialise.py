"""Where EM starts: federated k-means on coarse features. Only sums and counts leave a client.

The centres start along the first principal axis of the pooled rows, which needs second moments and no randomness.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, one_hot

GRID = 7  # images are averaged down to at most 7 × 7
ITERATIONS = 20
SOFTNESS = 0.03  # share of a row that is spread over all components, so that none starts empty


def coarse(x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n f"]:
    """A standardised image as an average over a coarse grid; a vector as it is."""
    if x.ndim == 4:
        x = adaptive_avg_pool2d(x, (min(GRID, x.shape[2]), min(GRID, x.shape[3])))
    return x.flatten(1)


def first_centres(
    count: Tensor, total: Float[Tensor, " f"], products: Float[Tensor, "f f"], components: int
) -> Float[Tensor, "c f"]:
    """C points along the first principal axis, from one standard deviation below the mean to one above."""
    mean = total / count
    values, vectors = torch.linalg.eigh(products / count - torch.outer(mean, mean))
    axis = vectors[:, -1] * values[-1].clamp_min(0).sqrt()
    axis = axis * torch.sign(axis[axis.abs().argmax()])  # an eigenvector has no sign of its own
    position = torch.linspace(-1, 1, components, dtype=axis.dtype) if components > 1 else torch.zeros(1)
    return mean + position[:, None] * axis


def nearest(features: Float[Tensor, "n f"], centres: Float[Tensor, "c f"]) -> Int[Tensor, " n"]:
    return torch.cdist(features, centres.to(features.dtype)).argmin(1)


def cluster_sums(
    features: Float[Tensor, "n f"], label: Int[Tensor, " n"], components: int, min_count: int
) -> tuple[Float[Tensor, " c"], Float[Tensor, "c f"]]:
    """Count and sum of every cluster; clusters with fewer than `min_count` rows stay at the client."""
    count = torch.bincount(label, minlength=components).double()
    total = torch.zeros(components, features.shape[1], dtype=torch.float64, device=features.device)
    total.index_add_(0, label, features.double())
    shown = count >= min_count
    return count * shown, total * shown[:, None]


def softened(label: Int[Tensor, " n"], components: int) -> Float[Tensor, "n c"]:
    """Responsibilities from clusters: nearly all of a row to its own."""
    return one_hot(label, components) * (1 - SOFTNESS) + SOFTNESS / components


def moved(
    centres: Float[Tensor, "c f"], count: Float[Tensor, " c"], total: Float[Tensor, "c f"]
) -> Float[Tensor, "c f"]:
    """The means of the clusters; a cluster without rows stays where it is."""
    mean = (total / count.clamp_min(1)[:, None]).to(centres.dtype)
    return torch.where(count[:, None] > 0, mean, centres)
