"""Norm bounding: no block of an update is longer than a few times the others' median (after Sun et al. 2019).

    Δ_i ← Δ_i · min(1, s a_i / ‖Δ_i‖),   s = LONGEST · median_{j≠i} ‖Δ_j‖,   a_i = max(1, √(n/n_i))

An update within the bound is not touched, not by a bit. What is left of a longer one has its direction. One that is
beyond it in every block was multiplied as a whole: it is given the others' median length, s = median_{j≠i} ‖Δ_j‖.
"""

from fedspm.federated.robust.blocks import WHOLE
from fedspm.federated.robust.screening import Lengths

LONGEST = 3.0  # times the median: docs/decisions/0013


def shortening(found: Lengths, client: str) -> dict[str, float]:
    """What the blocks of a client that are beyond the bound are multiplied by."""
    excess = {block: times for block, times in found.excess(client).items() if block != WHOLE}
    length = 1.0 if len(excess) > 1 and min(excess.values()) > LONGEST else LONGEST
    return {block: length / times for block, times in excess.items() if times > LONGEST}
