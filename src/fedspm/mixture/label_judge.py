"""Does it help to tell clusters apart? How well held-out labels are predicted by a linear head for every cluster.

Hidden components matter where P(y | x) differs between them: then one head for each of them explains more of the labels
of rows that it was not fitted to than one head for all. Clusters that are only a way to cut x gain little or lose,
since every head has fewer rows. The features know nothing of any data set: of images averages over a coarse grid,
rectified responses of random filters and their energies; of vectors the vector and random rectified features of it, so
that a rule with a threshold is not taken for two rules.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d, one_hot, relu

from fedspm.base.randomness import torch_generator
from fedspm.mixture.kmeans_init import coarse, random_filters

FILTERS, SIZE, GRID = 32, 5, 2
RECTIFIED = 96  # random features of a vector
FOLDS = 3
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)  # λ, in units of the mean of the diagonal of ZᵀZ
MARGIN = 1.04  # with every cluster more, this many times as much must be explained


def responses(x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n f"]:
    """What the heads see of standardised rows beside the views of k-means: rectified responses of random filters to an
    image, pooled, or random rectified features of a vector."""
    if x.ndim == 4:
        side = min(SIZE, *x.shape[2:])
        found = relu(conv2d(x, random_filters(FILTERS, x.shape[1], side).to(x), stride=min(2, side)))
        return adaptive_avg_pool2d(found, GRID).flatten(1)
    values = coarse(x)
    generator = torch_generator("random features", values.shape[1], RECTIFIED)
    weight = torch.randn(values.shape[1], RECTIFIED, generator=generator) / math.sqrt(values.shape[1])
    offset = torch.randn(RECTIFIED, generator=generator)
    return relu(values @ weight.to(values) + offset.to(values))


def own_units(features: Float[Tensor, "n f"]) -> Float[Tensor, "n f"]:
    """Every feature around the client's mean, in units of its deviation there."""
    features = features - features.mean(0)
    return features / features.square().mean(0).sqrt().clamp_min(1e-6)


def held_out_errors(
    features: Float[Tensor, "n f"], y: Int[Tensor, " n"], classes: int, cluster: Int[Tensor, " n"]
) -> tuple[Float[Tensor, " penalties"], Float[Tensor, ""]]:
    """Σ_j ‖y_j − ŷ_j‖² of one-hot labels for every λ, and Σ_j ‖y_j − ȳ‖², which no head explains.

    ŷ = ȳ + (z − z̄) B,   B = (ZᵀZ + λ s I)⁻¹ Zᵀ Y,   s the mean of the diagonal of ZᵀZ, all of the rows of the same
    cluster in the other folds; a row whose cluster has fewer than two of them is predicted by ȳ of the client.
    """
    labels, z = one_hot(y, classes).double(), features.double()
    fold = torch.arange(len(y)) % FOLDS
    mean = labels.mean(0)
    error = torch.zeros(len(PENALTIES), dtype=torch.float64)
    for c in cluster.unique():
        for k in range(FOLDS):
            fitted, held = (cluster == c) & (fold != k), (cluster == c) & (fold == k)
            if not held.any():
                continue
            if int(fitted.sum()) < 2:
                error += (labels[held] - mean).square().sum()
                continue
            centre, share = z[fitted].mean(0), labels[fitted].mean(0)
            design = z[fitted] - centre
            gram, right = design.T @ design, design.T @ (labels[fitted] - share)
            unit = gram.diagonal().mean().clamp_min(1e-9) * torch.eye(len(gram), dtype=gram.dtype)
            for i, penalty in enumerate(PENALTIES):
                slope = torch.cholesky_solve(right, torch.linalg.cholesky(gram + penalty * unit))
                error[i] += (labels[held] - share - (z[held] - centre) @ slope).square().sum()
    return error, (labels - mean).square().sum()


def explained(error: Float[Tensor, " penalties"], total: Float[Tensor, ""]) -> float:
    """1 − Σ‖y − ŷ‖² / Σ‖y − ȳ‖² with the best penalty: the share of the labels' variance that heads explain."""
    return float(1 - error.min() / total.clamp_min(1e-9))
