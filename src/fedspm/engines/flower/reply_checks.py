"""What is finite and yet impossible in a reply, whatever the rows of the site that sent it.

A site that lies within these bounds still moves the mean by its share ρ_i: nothing here makes averaging robust.
"""

import math
from collections.abc import Mapping
from statistics import median

import torch
from torch import Tensor

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors
from fedspm.federated.replies import Combined, PerClient, Reply
from fedspm.federated.transforms import sent

ROUNDING = 1e-4  # by which the shares of a site's rows may miss their number: they are in single precision
LARGEST = 1e15  # of a parameter, a mean, a deviation: what follows from more is not finite in single precision


def check_parameters(tensors: Tensors, shared: Tensors) -> None:
    """Nobody else should fail for what one site sent."""
    for name in tensors.keys() & shared.keys():
        if tensors[name].numel() and (largest := float(tensors[name].abs().max())) > LARGEST:
            raise Refused(f"{name!r} has a value of size {largest:.1e}, which no training gives")


def check_sums(tensors: Tensors, weight: float, step: str, n: int, shape: tuple[int, ...]) -> None:
    """Counts (or masses, shares of rows) beside sums over as many rows."""
    name = "count" if "count" in tensors else "mass"
    if name not in tensors:
        return
    if weight != 1:
        raise Refused(f"its weight is {weight!r}; a sum has the weight 1")
    counted, most = tensors[name], n * math.prod(shape[1:]) if step == "describe" else n
    whole = counted.ndim > 0 or float(counted) in (0, most)  # of all rows, or of none
    if (counted < 0).any() or not whole or float(counted.double().sum()) > most * (1 + ROUNDING):
        raise Refused(f"{name!r} is {few(counted)}, which cannot be, of {n} rows")
    squares = [tensors["square"]] if "square" in tensors else []
    squares += [tensors[each].diagonal(dim1=-2, dim2=-1) for each in ("products", "product") if each in tensors]
    if any((square < 0).any() for square in squares):
        raise Refused("a sum of squares is negative")
    if step == "describe":
        mean, square = (tensors[each].double() / counted.clamp_min(1) for each in ("sum", "square"))
        if mean.abs().max() > LARGEST or square.max() > LARGEST**2 or (square < mean.square() * (1 - ROUNDING)).any():
            raise Refused("'sum' and 'square' are not those of any rows")


def check_row(row: Tensors, step: str, n: int, clients: int) -> None:
    """Shares of the site's rows (noised or not), and counts of its test rows."""
    tau = row.get("tau")
    if tau is not None and ((tau < 0).any() or abs(float(tau.double().sum()) - n) > ROUNDING * n):
        raise Refused(f"'tau' is {few(tau)}, not shares of its {n} rows")
    if step == "evaluate":
        shapes = {"rows": (), "right": (), "routed": (clients,)}
        for name, shape in shapes.items():
            if name not in row or row[name].shape != shape or row[name].dtype != torch.int64:
                raise Refused(f"{name!r} is missing or not {'a count' if shape == () else 'a count a site'}")
        rows, right, routed = (row[name] for name in shapes)
        if not 0 <= right <= rows or (routed < 0).any() or routed.sum() not in (0, rows):
            raise Refused(f"{int(right)} right and {few(routed)} routed are not counts of {int(rows)} test rows")


def out_of_proportion(
    replies: Mapping[str, Reply], shared: Tensors, counts: Mapping[str, int], most: float
) -> dict[str, str]:
    """Sites whose update is longer than `most` times the median of the others', and the two lengths. Fewer than three
    sites cannot be judged, nor an exchange without updates.

    Updates from few rows are longer (the noise of a gradient goes with 1/√n) and weigh less: a site with fewer rows
    than the median of the others, n, may be longer by √(n/n_i).
    """
    if len(replies) < 3 or math.isinf(most):
        return {}
    lengths = {site: change(reply, shared) for site, reply in replies.items()}
    found = {}
    for site, length in lengths.items():
        others = [other for other in lengths if other != site]
        usual = median(lengths[other] for other in others)
        fewer = max(1.0, math.sqrt(median(counts[other] for other in others) / counts[site]))
        if usual > 0 and length > most * fewer * usual:
            found[site] = (
                f"its update has the length {length:.3g}, {length / usual:.3g} times the median of the others' "
                f"({usual:.3g}); with {counts[site]:,} rows more than {most * fewer:.3g} times is refused "
                f"(sites.max_update = {most:g})"
            )
    return found


def change(reply: Reply, shared: Tensors) -> float:
    """The L2 norm of the change of the shared parameters in a reply, all of them together; of τ there is a row only,
    and it is none of them."""
    if isinstance(reply, Combined):
        return change(reply.mean, shared)
    moved = (
        {name: value for row in reply.rows.values() for name, value in row.items()}
        if isinstance(reply, PerClient)
        else sent(reply)[1]
    )
    return math.sqrt(
        sum(
            float((value.double() - shared[name].cpu().double()).square().sum())
            for name, value in moved.items()
            if name in shared and value.is_floating_point() and value.shape == shared[name].shape
        )
    )


def few(values: Tensor) -> str:
    shown = ", ".join(f"{value:g}" for value in values.flatten()[:5].tolist())
    return f"[{shown}{', …' if values.numel() > 5 else ''}]"
