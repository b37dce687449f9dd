"""Rows of one client: how they are encoded for training, and how some are held out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import torch_generator
from fedspm.data.arrays import as_classes, as_input, as_rows

Arrays = tuple[Any, Any]  # (x, y): NumPy arrays, tensors or nested lists


@dataclass(frozen=True, repr=False)
class Part:
    """Rows of one client: x is (n, channels, height, width) or (n, features), y is (n,) with class numbers."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Never the rows themselves: a notebook prints it."""
        return f"Part({len(self):,} rows of {' × '.join(map(str, self.x.shape[1:]))})"

    def take(self, rows: Tensor) -> "Part":
        return Part(self.x[rows], self.y[rows])

    def to(self, device: torch.device) -> "Part":
        return Part(self.x.to(device), self.y.to(device))


@dataclass(frozen=True, repr=False)
class Truth:
    """What only a constructed federation knows, kept aside for diagnosis: an engine hands components only
    to a step that declares `truth`, and nothing else to an algorithm."""

    train: tuple[Tensor, ...]  # true component of every training row, one tensor per client
    test: tuple[Tensor, ...]
    mixing: Tensor  # (m, true components)
    sample: Tensor | None = None  # (true components, m or fewer, channels, height, width): one image, shifted by each
    naming: Tensor | None = None  # (m, true components, classes): how each calls every class, where names are permuted

    def meant(self, client: int, component: int, label: int) -> int | None:
        """The class that a client's label stands for in one of its true components; None if names are not permuted."""
        return None if self.naming is None else int((self.naming[client, component] == label).nonzero()[0])


def encode_test_rows(
    value: Arrays | None, classes: np.ndarray, name: str, like: Part, columns: tuple[str, ...] | None
) -> Part:
    """A client's test rows, of the shape of its training rows `like`; an empty part if none are given."""
    if value is None:
        return Part(like.x[:0], like.y[:0])
    where = f"client {name!r}, test rows"
    x, y = as_rows(value, where, columns)
    return Part(as_input(x, like.x.shape[1:], where), as_classes(y, classes, where))


def split_part(part: Part, fraction: float, key: tuple[int, str]) -> tuple[Part, Part]:
    """What is kept for training and what is held out for testing."""
    keep, hold = split_rows(len(part), fraction, (*key, "test"))
    return part.take(keep), part.take(hold)


def split_rows(n: int, fraction: float, key: tuple[int | str, ...]) -> tuple[Tensor, Tensor]:
    """Numbers of the rows to keep and of those to hold out, both ascending; drawn from a generator of this key."""
    if not 0 < fraction < 1:
        raise FedSPMError(f"the fraction of rows to hold out must lie between 0 and 1, it is {fraction}")
    order = torch.randperm(n, generator=torch_generator(*key))
    held = round(fraction * n)
    return order[held:].sort().values, order[:held].sort().values
