"""What a client answers, and how answers merge: `Mean` (weighted sums), `PerClient` (kept apart), `Combined` (both)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspm.base.tensors import Tensors


class Mean:
    """Σ_i weight_i · tensors_i, to be divided by Σ_i weight_i, for every tensor over the clients that sent it.

    Sums are kept in double precision on the CPU, so that the order of merging does not show in a single-precision mean.
    """

    def __init__(self, weight: float, **tensors: Tensor):
        self._kinds = {name: tensor.dtype for name, tensor in tensors.items()}
        self._weights = dict.fromkeys(tensors, float(weight))
        self._sent: tuple[float, Tensors] | None = (float(weight), tensors)  # until a merge
        self._added: Tensors | None = None  # the sums, once somebody asks for them
        self.answered: tuple[str, ...] = ()  # the clients whose replies these are: engines fill it in
        self.nbytes = 8 + sum(tensor.nbytes for tensor in tensors.values())  # as sent: the weight and the tensors

    def as_sent(self) -> tuple[float, Tensors]:
        """Weight and tensors as one client gave them."""
        assert self._sent is not None, "a reply that was merged already"
        return self._sent

    def merge(self, other: "Mean") -> "Mean":
        sums, others = self.totals(), other.totals()
        self._sent = None
        self.answered += other.answered
        for name, value in others.items():
            sums[name] = sums[name] + value if name in sums else value
            self._weights[name] = self._weights.get(name, 0.0) + other._weights[name]
        self._kinds |= other._kinds
        self.nbytes += other.nbytes
        return self

    def replace(self, means: Tensors) -> None:
        """Let these be the means of their tensors: what a robust rule makes of the replies that were merged."""
        self.totals().update({name: value.double() * self._weights[name] for name, value in means.items()})
        self._sent = None

    def result(self) -> Tensors:
        """The weighted means, in the precision in which they came (whole numbers are rounded)."""
        means = {name: total / self._weights[name] for name, total in self.totals().items()}
        return {
            name: (value if self._kinds[name].is_floating_point else value.round()).to(self._kinds[name])
            for name, value in means.items()
        }

    def totals(self) -> Tensors:
        """The weighted sums themselves, in double precision."""
        if self._added is None:
            weight, tensors = self.as_sent()
            self._added = {name: tensor.cpu().double() * weight for name, tensor in tensors.items()}
        return self._added


@dataclass
class PerClient:
    """What every client answered, kept apart under its name."""

    rows: dict[str, Tensors]

    @classmethod
    def of(cls, client: str, **tensors: Tensor) -> "PerClient":
        return cls({client: {name: tensor.cpu() for name, tensor in tensors.items()}})

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for row in self.rows.values() for tensor in row.values())

    @property
    def answered(self) -> tuple[str, ...]:
        """The clients whose replies these are."""
        return tuple(self.rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, as the first client sent them."""
        return tuple(next(iter(self.rows.values()), {}))

    def merge(self, other: "PerClient") -> "PerClient":
        if twice := self.rows.keys() & other.rows.keys():
            raise KeyError(f"client {min(twice)!r} answered twice")
        self.rows |= other.rows
        return self

    def stack(self, name: str, clients: Sequence[str], previous: Tensor | None = None) -> Tensor:
        """(m, …) in the order of `clients`; whoever did not answer keeps its previous row."""
        rows = []
        for i, client in enumerate(clients):
            if client in self.rows:
                rows.append(self.rows[client][name])
            elif previous is not None:
                rows.append(previous[i])
            else:
                raise KeyError(f"client {client!r} did not answer and has no earlier row of {name!r}")
        return torch.stack(rows)


@dataclass
class Combined:
    """A mean and rows in one answer: what two exchanges would carry."""

    mean: Mean
    rows: PerClient

    @property
    def answered(self) -> tuple[str, ...]:
        return self.rows.answered

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.rows.nbytes

    def merge(self, other: "Combined") -> "Combined":
        self.mean.merge(other.mean)
        self.rows.merge(other.rows)
        return self


Reply = Mean | PerClient | Combined


def merge(merged: Reply | None, client: str, reply: Reply) -> Reply:
    """A client's reply added to those before it, which say who answered."""
    mean = reply.mean if isinstance(reply, Combined) else reply
    if isinstance(mean, Mean):
        mean.answered = (client,)
    return reply if merged is None else merged.merge(reply)  # type: ignore[arg-type]
