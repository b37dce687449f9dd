"""Where EM starts: federated k-means on coarse features, with an offset for every client.

A row of client i in cluster c is taken as o_i + μ_c + noise. The centres μ are shared, so that component c means the
same for everybody; the offset o_i, which stays at the client, takes up what sets the client apart, so that clusters
are found inside clients and not between them. Only counts and sums leave a client. The centres start along one of the
first principal axes within clients, the one along which two clusters separate best: second moments, and nothing random.

Images are seen as a coarse average, and images in colour also by how their channels go together: a component that
inverts one channel leaves the averages of many images where they were, but turns the correlations around.

There may be fewer clusters than components: to split what belongs together costs every half the other half's rows.
Their number is the one with the largest Calinski–Harabasz index, and the other components start nearly empty.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d, normalize, one_hot

from fedspm.base.randomness import torch_generator

GRID = 7  # images are averaged down to at most 7 × 7
LONGEST = 256  # features beyond which second moments would be too large to send
AXES = 4  # principal axes along which two clusters are tried
GLANCES = 3  # iterations of each try
ITERATIONS = 10
PLACEMENTS = 5
FILTERS, SIZE = 48, 3  # of `textures`
FLAT = 1e-3  # energy of a filter below which an image counts as flat
SOFTNESS = 0.03  # share of a row that is spread over all components, so that none starts empty


def most_iterations(components: int) -> int:
    """How often a start asks for the sums of clusters, at most."""
    return AXES * GLANCES + ITERATIONS * (components - 1)


def coarse(x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n f"]:
    """A standardised image as an average over a coarse grid; a vector as it is, a long one projected at random."""
    if x.ndim == 4:
        x = adaptive_avg_pool2d(x, (min(GRID, x.shape[2]), min(GRID, x.shape[3])))
    return _shortened(x.flatten(1))


def correlations(x: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n pairs"]:
    """How every two channels of an image go together over its pixels, from −1 to 1; nothing for a single channel."""
    pixels = x.flatten(2)
    pixels = normalize(pixels - pixels.mean(2, keepdim=True), dim=2)
    one, other = torch.triu_indices(x.shape[1], x.shape[1], 1)
    return _shortened((pixels @ pixels.mT)[:, one, other])


def random_filters(number: int, channels: int, size: int) -> Float[Tensor, "number channels size size"]:
    """Filters of length 1 with random weights: always the same, for all data."""
    generator = torch_generator("random filters", number, channels, size)
    weight = torch.randn(number, channels, size, size, generator=generator)
    return normalize(weight.flatten(1)).view_as(weight)


def textures(x: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n filters"]:
    """How much random filters find in an image compared with each other: logarithms of their mean energies.

    A filter has no mean in any channel, so that neither light nor colour counts, only how pixels change; the mean over
    filters is taken away, so that contrast does not count."""
    weight = random_filters(FILTERS, x.shape[1], min(SIZE, *x.shape[2:])).to(x)
    weight = weight - weight.mean((2, 3), keepdim=True)
    energy = (conv2d(x, weight).square().mean((2, 3)) + FLAT).log()
    return energy - energy.mean(1, keepdim=True)


def described(x: Float[Tensor, "n *shape"], mean: Float[Tensor, "1 *shape"]) -> Float[Tensor, "n f"]:
    """What k-means sees of standardised rows: averages, and for colours correlations, weighed as much as these.

    Correlations are those around the client's own mean image, so that what it does to all of its images does not show.
    """
    averages = coarse(x)
    if x.ndim != 4 or x.shape[1] == 1:
        return averages
    pairs = correlations(x - mean)
    return torch.cat([averages, pairs * math.sqrt(averages.shape[1] / pairs.shape[1])], 1)


def _shortened(features: Float[Tensor, "n f"]) -> Float[Tensor, "n g"]:
    length = features.shape[1]
    if length <= LONGEST:
        return features
    projection = torch.randn(length, LONGEST, generator=torch_generator("coarse", length))
    return features @ (projection / math.sqrt(LONGEST)).to(features.device)


def first_centres(scatter: Float[Tensor, "f f"], clusters: int, axis: int = 0) -> Float[Tensor, "clusters f"]:
    """Points along a principal axis of the scatter (0: the first), from one deviation below zero to one above."""
    values, vectors = torch.linalg.eigh(scatter)
    along = vectors[:, -1 - axis] * values[-1 - axis].clamp_min(0).sqrt()
    along = along * torch.sign(along[along.abs().argmax()])  # an eigenvector has no sign of its own
    centres: Tensor = torch.linspace(-1, 1, clusters, dtype=along.dtype)[:, None] * along
    return centres


def nearest(features: Float[Tensor, "n f"], centres: Float[Tensor, "c f"]) -> Int[Tensor, " n"]:
    return torch.cdist(features, centres).argmin(1)


def place(
    features: Float[Tensor, "n f"], centres: Float[Tensor, "c f"]
) -> tuple[Int[Tensor, " n"], Float[Tensor, " f"]]:
    """The cluster of every row and the client's own offset, o_i = mean over j of x_ij − μ of its cluster, by turns."""
    centres = centres.to(features.dtype)
    label, before, offset = nearest(features, centres), None, torch.zeros_like(features[0])
    for _ in range(PLACEMENTS):
        if before is not None and torch.equal(label, before):
            break  # and would stay so
        offset = (features - centres[label]).mean(0)
        label, before = nearest(features - offset, centres), label
    return label, offset


def cluster_sums(
    features: Float[Tensor, "n f"], label: Int[Tensor, " n"], clusters: int, min_count: int
) -> tuple[Float[Tensor, " c"], Float[Tensor, "c f"], Float[Tensor, ""]]:
    """Count and sum of every cluster, and the sum of squares; clusters below `min_count` rows stay at the client.

    So do further ones, the smallest first, until what stays has `min_count` rows: the sum over all rows is known to be
    zero, and what is missing from it would be the rows of a small cluster.
    """
    count = torch.bincount(label, minlength=clusters).double()
    total = torch.zeros(clusters, features.shape[1], dtype=torch.float64)
    total.index_add_(0, label, features.double())
    order = count.argsort(stable=True)
    hidden = count[order].cumsum(0) - count[order]  # rows of smaller clusters
    shown = torch.empty_like(count, dtype=torch.bool)
    shown[order] = (count[order] >= min_count) & ((hidden == 0) | (hidden >= min_count))
    square = (features.double().square().sum(1) * shown[label]).sum()
    return count * shown, total * shown[:, None], square


def grouped(
    features: Float[Tensor, "n f"], clusters: int, min_count: int, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """k-means of one client's rows with at least `min_count` rows in every cluster, if it has as many."""
    centres = features[torch.randperm(len(features), generator=generator)[:clusters]]
    for _ in range(ITERATIONS):
        count, total, _ = cluster_sums(features, nearest(features, centres), len(centres), 1)
        centres = moved(centres, count, total)
    while True:
        label = nearest(features, centres)
        count = torch.bincount(label, minlength=len(centres))
        small = int((count < min_count).sum())
        if small == 0 or len(centres) == 1:
            return label
        centres = centres[count.argsort(descending=True)[: len(centres) - (small + 1) // 2]]


def moved(
    centres: Float[Tensor, "c f"], count: Float[Tensor, " c"], total: Float[Tensor, "c f"]
) -> Float[Tensor, "c f"]:
    """The means of the clusters; a cluster without rows stays where it is."""
    mean = (total / count.clamp_min(1)[:, None]).to(centres.dtype)
    return torch.where(count[:, None] > 0, mean, centres)


def separation(count: Float[Tensor, " c"], total: Float[Tensor, "c f"], square: Float[Tensor, ""]) -> float:
    """The Calinski–Harabasz index: scatter between clusters over scatter within, each by its degrees of freedom."""
    n, clusters = count.sum(), int((count > 0).sum())
    if n <= clusters or clusters < 2:
        return -math.inf
    within = square - (total.square().sum(1) / count.clamp_min(1)).sum()
    between = square - total.sum(0).square().sum() / n - within
    return float(between / (clusters - 1) * (n - clusters) / within.clamp_min(1e-12))


def softened(label: Int[Tensor, " n"], components: int) -> Float[Tensor, "n c"]:
    """Responsibilities from clusters: nearly all of a row to its own."""
    return one_hot(label, components) * (1 - SOFTNESS) + SOFTNESS / components
