"""Groups of rows that stay together in the sums of k-means (`privacy.withhold_rows`).

Whoever chooses centres chooses sums, and two sums that differ by one row show it: also in an honest start, whose last
iterations move single rows. So rows are put into groups once, and a group goes to a cluster as a whole: whatever is
asked, and in however many runs, every sum is one of sums over whole groups. Groups follow from the client's rows alone,
not from what a server sends, and those for a larger `min_count` are unions of those for a smaller one.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.mixture.kmeans_init import coarse
from fedspm.mixture.label_judge import own_units

THIRD = 3  # a cut leaves at least a third of the rows on either side
TURNS = 30  # of the power iteration


def row_groups(x: Float[Tensor, "n *shape"], least: int) -> Int[Tensor, " n"]:
    """The group of every row: halves of halves, across the widest gap along the first principal axis, as long as both
    have at least `least` rows."""
    known = x.isnan().logical_not()
    filled = x.nan_to_num()
    mean = filled.sum(0) / known.sum(0).clamp_min(1)
    features = own_units(coarse(torch.where(known, filled, mean).cpu()).double())
    group = torch.zeros(len(x), dtype=torch.long)
    waiting, found = [torch.arange(len(x))], 0
    while waiting:
        rows = waiting.pop()
        along = features[rows] @ first_axis(features[rows])
        order = along.argsort(stable=True)
        cut = widest_gap(along[order])
        if min(cut, len(rows) - cut) < least:
            group[rows] = found
            found += 1
        else:
            waiting += [rows[order[:cut]].sort().values, rows[order[cut:]].sort().values]
    return group


def first_axis(features: Float[Tensor, "n f"]) -> Float[Tensor, " f"]:
    """The first principal axis, nearly: by a power iteration from the row that is farthest from the mean."""
    centred = features - features.mean(0)
    axis = centred[centred.square().sum(1).argmax()] if len(centred) else features.new_zeros(features.shape[1])
    for _ in range(TURNS):
        axis = torch.nn.functional.normalize(centred.T @ (centred @ axis), dim=0)
    return axis


def widest_gap(ordered: Float[Tensor, " n"]) -> int:
    """Before which of the ordered numbers the widest gap is, of those with a third of them on either side."""
    first = -(-len(ordered) // THIRD)
    gaps = ordered.diff()[first - 1 : len(ordered) - first]
    return first + int(gaps.argmax()) if len(gaps) else 0


def group_means(features: Float[Tensor, "n f"], group: Int[Tensor, " n"]) -> Float[Tensor, "n f"]:
    """Every row as the mean of its group."""
    count = torch.bincount(group)
    total = features.new_zeros(len(count), features.shape[1]).index_add_(0, group, features)
    return (total / count[:, None].to(features))[group]
