"""Rows that can be read from an update: where a layer sees rows themselves, its change shows them.

Of a linear layer z = W x + b, whatever follows it, a row x_j changes W_u by a_uj x_j and b_u by a_uj. A unit that one
row alone has moved shows that row, and two units whose changes differ by one row show it in their difference:

    ΔW_u / Δb_u = x_j          (ΔW_u − ΔW_v) / (Δb_u − Δb_v) = x_j

In an honest training of few rows the first happens by itself: an outlier is alone in a half-space of some unit. With
`privacy.withhold_rows` such a unit is sent back unchanged. A server that makes up the weights which it sends can see to
both (Boenisch et al. 2023; Fowl et al. 2022): a site looks through its updates before they leave, and `fedspm audit`
through those of a run. It can also let rows pass a layer unharmed: then the same holds of the layer behind it, of heads
and of tilts, with what they see of a row in place of x (`federated.gate.layers_seen`).
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NEAR = 0.03  # of the rows' spread: a guess that is nearer to a row has read it
PIECE = 4096  # pairs that are looked at together
CHANCE = 0.01  # guesses that may be as near as that by chance, in one update: with few features the bound is smaller


def layers_on_rows(shared: Mapping[str, Tensor], features: int) -> list[tuple[str, str]]:
    """Names of weight and bias of the linear layers that may see rows of so many features."""
    found = []
    for name, value in shared.items():
        bias = name.removesuffix("weight") + "bias"
        if name.endswith(".weight") and value.ndim == 2 and value.shape[1] == features and bias in shared:
            found.append((name, bias))
    return found


def units_that_show(
    weight: Float[Tensor, "u d"], bias: Float[Tensor, " u"], rows: Float[Tensor, "n d"]
) -> Bool[Tensor, " u"]:
    """Units whose change by itself shows one of the rows."""
    weight, bias, rows = weight.double(), bias.double(), rows.double()
    spread = (rows - rows.mean(0)).square().sum(1).mean().sqrt()
    near = min(NEAR, (CHANCE / max(1, len(bias) * len(rows))) ** (1 / rows.shape[1])) * spread
    guesses = weight / torch.where(bias == 0, 1.0, bias)[:, None]
    shows: Tensor = (bias != 0) & (torch.cdist(guesses, rows).min(1).values <= near)
    return shows


def rows_read(
    weight: Float[Tensor, "u d"], bias: Float[Tensor, " u"], rows: Float[Tensor, "n d"]
) -> Int[Tensor, " read"]:
    """Which of the rows the changes of a layer's weights and bias show, by single units or by two of them.

    All pairs are looked at without forming them: ‖g − x‖² = ‖g‖² − 2 gᵀx + ‖x‖² needs only products of changes with
    changes and with rows. A unit that never moves makes a pair of every single one. Rows are taken from their mean,
    which changes none of the distances.
    """
    centre = rows.double().mean(0)
    rows = rows.double() - centre
    bias = torch.cat([bias.double(), torch.zeros(1)])
    weight = torch.cat([weight.double(), torch.zeros(1, rows.shape[1])]) - bias[:, None] * centre
    by_row, gram, lengths = weight @ rows.T, weight @ weight.T, rows.square().sum(1)
    one, other = torch.triu_indices(len(bias), len(bias), 1)
    moved = bias[one] != bias[other]
    one, other = one[moved], other[moved]
    chance = (CHANCE / max(1, len(one) * len(rows))) ** (1 / rows.shape[1])
    near = min(NEAR, chance) * lengths.mean().sqrt()
    read = torch.zeros(len(rows), dtype=torch.bool)
    for u, v in zip(one.split(PIECE), other.split(PIECE), strict=True):
        by = (bias[u] - bias[v])[:, None]
        square = (gram[u, u] + gram[v, v] - 2 * gram[u, v])[:, None]
        distance = square / by.square() - 2 * (by_row[u] - by_row[v]) / by + lengths
        read |= (distance <= near.square()).any(0)
    return read.nonzero().flatten()
