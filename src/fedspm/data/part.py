"""Rows of one client: how they are encoded for training, and how some are held out."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import torch_generator

Arrays = tuple[Any, Any]  # (x, y): NumPy arrays, tensors, nested lists, data frames


@dataclass(frozen=True, repr=False)
class Part:
    """Rows of one client: x is (n, channels, height, width) or (n, features), y is (n,) with class numbers."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None  # of each row in the supervised loss, 1 on average; None: all weigh the same

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Never the rows themselves: a notebook prints it."""
        return f"Part({len(self):,} rows of {' × '.join(map(str, self.x.shape[1:]))})"

    def take(self, rows: Tensor) -> "Part":
        return Part(self.x[rows], self.y[rows], None if self.weight is None else self.weight[rows])

    def add_to(self, digest: "hashlib._Hash") -> None:
        """Shape, labels and values, images channels last, as they lie in memory."""
        digest.update(str(tuple(self.x.shape)).encode() + self.y.numpy().tobytes())
        if self.x.numel():
            channels_last = self.x.permute(0, 2, 3, 1) if self.x.ndim == 4 else self.x
            digest.update(channels_last.contiguous().numpy().data.cast("B"))

    def to(self, device: torch.device) -> "Part":
        return Part(self.x.to(device), self.y.to(device), None if self.weight is None else self.weight.to(device))


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
