"""An update in blocks, each judged by its own length: encoders by their role, and of a tensor with one row per client
the client's own row apart from those of the others.

A client's own rows (`Update(own_rows=True)`) are its own to move, and it moves them further than anybody else does: a
rule that takes a client's row for an outlier would take away what the client knows best.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.replies import Combined, Mean, PerClient, Reply
from fedspm.federated.steps import Step
from fedspm.federated.transforms import updates
from fedspm.federated.uploads import Update

WHOLE = "all parameters but its own rows"
OWN_ROW, OTHERS_ROWS = ", own row", ", others' rows"  # what is said of a tensor with one row per client


@dataclass(frozen=True)
class Change:
    """Δ_i = φ_i − φ of one client, in double precision, and the weight that its reply has in a mean."""

    client: str
    index: int  # of its own rows
    rows: int
    weight: float
    of: Tensors
    largest: Mapping[str, float]  # value of each tensor before

    @classmethod
    def in_reply(cls, client: str, index: int, rows: int, step: Step, shared: Tensors, reply: Reply) -> "Change":
        weight, moved = sent(step, reply)
        change = {name: value.cpu().double() - shared[name].cpu().double() for name, value in moved.items()}
        largest = {name: float(shared[name].abs().max()) if value.numel() else 0.0 for name, value in moved.items()}
        return cls(client, index, rows, weight, change, largest)


def sent(step: Step, reply: Reply) -> tuple[float, Tensors]:
    """The weight and the updated parameters of one client's reply."""
    if isinstance(reply, Combined):
        return sent(step, reply.mean)
    if isinstance(reply, PerClient):
        return 1.0, updates(step, {name: value for row in reply.rows.values() for name, value in row.items()})
    weight, tensors = reply.as_sent()
    return weight, updates(step, tensors)


def replaced(reply: Reply, tensors: Tensors) -> Reply:
    """The reply with some of its tensors exchanged; it still weighs, in bytes, what was sent."""
    if isinstance(reply, Combined):
        mean = replaced(reply.mean, tensors)
        assert isinstance(mean, Mean)
        return Combined(mean, reply.rows)
    if isinstance(reply, PerClient):
        return PerClient({client: row | tensors for client, row in reply.rows.items()})
    weight, before = reply.as_sent()
    made = Mean(weight, **(before | tensors))
    made.nbytes = reply.nbytes
    return made


def has_own_rows(step: Step, name: str) -> bool:
    upload = step.upload(name)
    return isinstance(upload, Update) and upload.own_rows


def parts(step: Step, change: Change) -> Iterator[tuple[str, str, Tensor]]:
    """(block, tensor, what of the change of that tensor is in the block), the tensors in the order of their names."""
    for name, value in sorted(change.of.items()):
        if has_own_rows(step, name):
            yield name + OWN_ROW, name, value[change.index : change.index + 1]
            yield name + OTHERS_ROWS, name, torch.cat([value[: change.index], value[change.index + 1 :]])
        else:
            yield name.split(".", maxsplit=1)[0], name, value


def lengths(step: Step, change: Change) -> dict[str, float]:
    """The L2 norm of every block, and of all together that are not the client's own rows."""
    squares: dict[str, float] = {WHOLE: 0.0}
    for block, _, value in parts(step, change):
        square = float(value.square().sum())
        squares[block] = squares.get(block, 0.0) + square
        squares[WHOLE] += 0.0 if block.endswith(OWN_ROW) else square
    return {block: square**0.5 for block, square in squares.items()}


def lengths_of_sums(reply: Reply, rows: int) -> dict[str, float]:
    """The L2 norm of every sum over rows, by row."""
    mean = reply.mean if isinstance(reply, Combined) else reply
    sums = mean.as_sent()[1] if isinstance(mean, Mean) else {}
    return {name: float(value.cpu().double().norm()) / rows for name, value in sums.items()}


def rescaled(step: Step, change: Change, factors: Mapping[str, float]) -> Tensors:
    """The tensors of a change of which a block is multiplied, as they are afterwards."""
    found: Tensors = {}
    for name, value in change.of.items():
        if has_own_rows(step, name):
            own, others = (factors.get(name + whose, 1.0) for whose in (OWN_ROW, OTHERS_ROWS))
            if own != 1 or others != 1:
                by_row = torch.full((len(value), *[1] * (value.ndim - 1)), others, dtype=value.dtype)
                by_row[change.index] = own
                found[name] = value * by_row
        elif (factor := factors.get(name.split(".", maxsplit=1)[0], 1.0)) != 1:
            found[name] = value * factor
    return found
