"""What everybody knows before training."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What everybody knows before training: the shape of a row, the classes, the clients and their sizes."""

    shape: tuple[int, ...]
    classes: int
    names: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of_description(cls, known: Mapping[str, Any]) -> "Task":
        """From what a server tells the sites of a run."""
        return cls(tuple(known["shape"]), len(known["classes"]), tuple(known["names"]), tuple(known["counts"]))

    @property
    def clients(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> Float[Tensor, "m 1"]:
        """n_i, a row each"""
        return torch.tensor(self.counts, dtype=torch.float32)[:, None]

    @cached_property
    def sample_fraction(self) -> Float[Tensor, " m"]:
        """ρ_i = n_i / n"""
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return (counts / counts.sum()).float()
