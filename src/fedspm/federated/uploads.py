"""What may leave a client, by kind: updates of shared parameters, sums over rows, counts, shares of rows.

A step declares a kind for every tensor that it sends (`federated.steps`). The kind says whether replies are averaged or
kept apart by client, whether `privacy.noise` covers it, and what no rows could have given: a server across sites
refuses that.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedspm.base.errors import Refused
from fedspm.base.tensors import Tensors

ROUNDING = 1e-4  # by which shares of rows may miss their number: they are in single precision
LARGEST = 1e15  # of a parameter, a mean, a deviation: what follows from more is not finite in single precision


@dataclass(frozen=True)
class Sender:
    """Whose reply is checked: the client's training rows, the values in each (pixels of a channel), and the clients."""

    rows: int
    values_per_row: int
    clients: int
    missing: bool = False  # may its rows, of a table, lack values?


@dataclass(frozen=True)
class Upload:
    """A tensor that a step sends."""

    apart: bool = False  # kept apart by client (`PerClient`), not summed or averaged over them (`Mean`)

    noised: ClassVar[bool] = False  # does `privacy.noise` cover it?
    phrase: ClassVar[str] = ""  # what it is, for docs/what-leaves.md

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        """Refuse a value that no rows give."""


@dataclass(frozen=True)
class Update(Upload):
    """Shared parameters after local steps, averaged over clients: clipped and noised where privacy is set."""

    own_rows: bool = False  # one row per client, of which row i is client i's own to move (`robust`)
    opposed: bool = False  # honest steps raise something in the client's own row, and nothing in anybody else's

    noised = True
    phrase = "shared parameters after the client's local steps"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        value = reply[name]
        if value.numel() and (largest := float(value.abs().max())) > LARGEST:
            raise Refused(f"{name!r} has a value of size {largest:.1e}, which no training gives")


@dataclass(frozen=True)
class Copy(Update):
    """Shared parameters after local steps, kept apart by client: nothing is averaged, so nothing can be noised."""

    apart: bool = True
    noised = False
    phrase = "shared parameters after the client's local steps, kept apart from the others'"


@dataclass(frozen=True)
class Sum(Upload):
    """A sum over at least `min_count` rows."""

    phrase = "sum over rows"


@dataclass(frozen=True)
class Count(Upload):
    """How many rows (or shares of rows) a sum is over; or how many values of each feature, of which an image has
    several."""

    of: str = "rows"
    phrase = "number of rows"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        counted = reply[name].double()
        if self.of == "values":
            most, found = sender.rows * sender.values_per_row, float(counted.max())
        else:
            most, found = sender.rows, float(counted.sum())
        whole = counted.ndim > 0 or found in (0, most)  # of all rows, or of none
        if self.of == "values":  # of some where values may be missing
            whole = bool(
                ((counted == counted.round()) if sender.missing else ((counted == 0) | (counted == most))).all()
            )
        if (counted < 0).any() or not whole or found > most * (1 + ROUNDING):
            raise Refused(f"{name!r} is {few(counted)}, which cannot be, of {sender.rows} rows")


@dataclass(frozen=True)
class Squares(Upload):
    """A sum of squares; of the same values as the sum and the count that are named, if they are."""

    sum: str = ""
    count: str = ""
    phrase = "sum of squares over rows"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        if (reply[name] < 0).any():
            raise Refused("a sum of squares is negative")
        if self.sum and self.count in reply:
            mean, square = (reply[each].double() / reply[self.count].clamp_min(1) for each in (self.sum, name))
            absurd = mean.abs().max() > LARGEST or square.max() > LARGEST**2
            if absurd or (square < mean.square() * (1 - ROUNDING)).any():
                raise Refused(f"{self.sum!r} and {name!r} are not those of any rows")


@dataclass(frozen=True)
class Products(Upload):
    """Sums of products of features, a matrix with squares on its diagonal."""

    phrase = "sums of products of features over rows"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        if (reply[name].diagonal(dim1=-2, dim2=-1) < 0).any():
            raise Refused("a sum of squares is negative")


@dataclass(frozen=True)
class Shares(Upload):
    """How the client's rows are divided among `settings.components`: numbers that add up to n_i."""

    apart: bool = True
    noised = True
    phrase = "shares of the client's rows by component"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        value, n = reply[name], sender.rows
        if (value < 0).any() or abs(float(value.double().sum()) - n) > ROUNDING * n:
            raise Refused(f"{name!r} is {few(value)}, not shares of its {n} rows")


@dataclass(frozen=True)
class EvaluationCount(Upload):
    """How many test rows, or how many of them (`of` names all): right ones, or those routed to each client."""

    apart: bool = True
    of: str = ""
    by_client: bool = False
    phrase = "number of test rows"

    def check(self, name: str, reply: Tensors, sender: Sender) -> None:
        value, shape = reply.get(name), (sender.clients,) if self.by_client else ()
        if value is None or value.shape != shape or value.dtype != torch.int64:
            raise Refused(f"{name!r} is missing or not {'one count per site' if self.by_client else 'a count'}")
        if self.of and self.of in reply:
            rows, total = int(reply[self.of]), int(value.sum())
            if (value < 0).any() or not (total in (0, rows) if self.by_client else total <= rows):
                raise Refused(f"{name!r} is {few(value)}, not counts of {rows} test rows")


DESCRIPTION: dict[str, Upload] = {
    "count": Count(of="values"),
    "sum": Sum(),
    "square": Squares(sum="sum", count="count"),
}
EVALUATION: dict[str, Upload] = {
    "rows": EvaluationCount(),
    "right": EvaluationCount(of="rows"),
    "routed": EvaluationCount(of="rows", by_client=True),
}


def few(values: Tensor) -> str:
    """The first few numbers of a tensor, for a sentence."""
    shown = ", ".join(f"{value:g}" for value in values.flatten()[:5].tolist())
    return f"[{shown}{', …' if values.numel() > 5 else ''}]"


def values_per_row(shape: tuple[int, ...]) -> int:
    """Of an image every channel has height × width values, of a vector every feature has one."""
    return math.prod(shape[1:])
