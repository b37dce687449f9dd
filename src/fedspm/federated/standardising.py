"""How rows are standardised: sums over the rows of every client, the mean and scale that follow, and their use."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.nn.normalisation import per_channel

ROWS = 1024  # that are summed together


def feature_sums(x: Float[Tensor, "n *shape"], least: int, flags: Sequence[bool] = ()) -> Tensors:
    """Count, sum and sum of squares of every channel or feature, of what is known (NaN is not).

    A feature of fewer than `least` values counts as unknown, and so does a flag, which is 0 or 1, that fewer rows have,
    or lack, but some: it would tell how many.
    """
    shown = x if len(x) >= least else x[:0]
    over = (0, 2, 3) if x.ndim == 4 else (0,)
    total, square, missing = torch.zeros(3, x.shape[1], dtype=torch.float64)
    for piece in shown.split(ROWS):
        missing += piece.isnan().sum(over).cpu()
        known = piece.cpu().double().nan_to_num()
        total += known.sum(over)
        square += known.square().sum(over)
    count = shown.numel() / x.shape[1] - missing
    few = count < least
    if flags:
        zeros = count - total
        few |= torch.tensor(flags) & (((total > 0) & (total < least)) | ((zeros > 0) & (zeros < least)))
    told = {"count": count, "sum": total, "square": square}
    return {name: value.masked_fill(few, 0) for name, value in told.items()}


def mean_and_scale(count: Tensor, sum: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """x̄ = Σx / n and s² = Σx² / n − x̄² of every feature; a constant one has scale 1, so that it becomes zero"""
    count = count.clamp_min(1)
    mean = sum / count
    scale = (square / count - mean.square()).clamp_min(0).sqrt()
    return mean, torch.where(scale > 1e-7 * mean.abs(), scale, 1.0)


def standardised(
    x: Float[Tensor, "n *shape"], mean: Tensor, scale: Tensor, missing: bool = False
) -> Float[Tensor, "n *shape"]:
    """(x − mean) / scale in one pass; what is `missing`, NaN, counts as the mean"""
    factor = 1 / scale
    offset = -mean * factor
    if x.ndim == 4:
        factor, offset = per_channel(factor, x), per_channel(offset, x)
    z = torch.addcmul(offset, x, factor)
    return z.nan_to_num() if missing else z
