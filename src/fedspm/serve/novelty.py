"""Does a query resemble anybody? A distance in what the router sees, calibrated on held-out rows.

The density ratio is defined against the baseline, and off its support it says nothing: noise has a ratio like any
image. So the score is a distance. A row is described by the router's features h(x) and by the coarse picture k-means
starts from (a 7 × 7 average of an image, a vector as it is): h knows what sets clients apart and forgets the rest, the
coarse picture keeps what h forgets. The score is the Mahalanobis distance from the nearest centre of a client's
component, with the scatter within components in common. Counts, sums and products are all it takes from the clients.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.mixture.kmeans_init import coarse

RIDGE = 1e-3  # added to the diagonal of the scatter, as a share of its mean
STEPS = 1000  # quantiles that the calibration keeps


def description(x: Float[Tensor, "n *shape"], features: Tensors) -> Float[Tensor, "n f"]:
    """What the distance is measured in: the router's features beside the coarse picture of the standardised row."""
    return torch.cat([*(features[name].flatten(1) for name in sorted(features)), coarse(x)], dim=1)


@dataclass(frozen=True)
class Sums:
    """Count and sum of every component, and the products of all; they add."""

    count: Float[Tensor, " g"]
    total: Float[Tensor, "g f"]
    products: Float[Tensor, "f f"]

    @classmethod
    def of(cls, rows: Float[Tensor, "n f"], group: Int[Tensor, " n"], groups: int, min_count: int) -> "Sums":
        """Of one client; components with fewer than `min_count` rows stay there."""
        shown = torch.bincount(group, minlength=groups)[group] >= min_count
        rows, group = rows[shown].double(), group[shown]
        total = torch.zeros(groups, rows.shape[1], dtype=torch.float64).index_add_(0, group, rows)
        return cls(torch.bincount(group, minlength=groups).double(), total, rows.T @ rows)

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.count + other.count, self.total + other.total, self.products + other.products)


@dataclass(frozen=True)
class Novelty:
    centres: Float[Tensor, "g f"]  # in the coordinates in which the scatter within components is the identity
    whiten: Float[Tensor, "f f"]
    quantiles: Float[Tensor, " q"]  # of the distances of held-out rows

    @classmethod
    def fit(cls, sums: Sums) -> "Novelty":
        """Centres and scatter, not calibrated yet."""
        mean = sums.total / sums.count.clamp_min(1)[:, None]
        scatter = (sums.products - mean.T @ (mean * sums.count[:, None])) / sums.count.sum().clamp_min(1)
        size = scatter.diagonal().mean().clamp_min(1e-12)
        scatter = scatter + RIDGE * size * torch.eye(len(scatter), dtype=scatter.dtype)
        lower = torch.linalg.cholesky(scatter)
        whiten = torch.linalg.inv(lower).T.contiguous()
        shown = sums.count > 0
        if not shown.any():
            raise FedSPMError("no component of any client has min_count rows, too few to tell what is novel")
        return cls((mean[shown] @ whiten).float(), whiten.float(), torch.zeros(STEPS + 1))

    def distance(self, rows: Float[Tensor, "n f"]) -> Float[Tensor, " n"]:
        # not by multiplying matrices, as it would for many rows: where centres are far from zero that cancels
        found: Tensor = torch.cdist(rows @ self.whiten, self.centres, compute_mode="donot_use_mm_for_euclid_dist")
        return found.amin(1)

    def calibrated(self, held_out: Iterable[Float[Tensor, "n f"]]) -> "Novelty":
        distances = torch.cat([self.distance(rows) for rows in held_out])
        if not len(distances):
            raise FedSPMError("there are no held-out rows to calibrate on")
        return Novelty(self.centres, self.whiten, torch.quantile(distances, torch.linspace(0, 1, STEPS + 1)))

    def share_below(self, x: Float[Tensor, "n *shape"], features: Tensors) -> Float[Tensor, " n"]:
        """The calibrated score: which share of known rows lies nearer to a centre."""
        found = torch.searchsorted(self.quantiles, self.distance(description(x, features)), right=True)
        return (found - 1).clamp_min(0) / STEPS

    def tensors(self) -> Tensors:
        return {f"novelty.{name}": value for name, value in vars(self).items()}

    @classmethod
    def out_of(cls, tensors: Tensors) -> "Novelty | None":
        if "novelty.centres" not in tensors:
            return None
        return cls(tensors["novelty.centres"], tensors["novelty.whiten"], tensors["novelty.quantiles"])
