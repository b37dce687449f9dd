"""What everybody knows before training: `Task`, and the places that it is known from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.federation import Federation
from fedspm.data.tables.schema import TableSchema
from fedspm.federated.settings import Privacy


@dataclass(frozen=True)
class Task:
    """The shape of a row, the number of classes, the clients and how many training rows each of them has."""

    shape: tuple[int, ...]
    classes: int
    names: tuple[str, ...]
    counts: tuple[int, ...]
    schema: TableSchema | None = None  # what the elements of a vector mean, where they have names

    @classmethod
    def of_federation(cls, federation: Federation) -> "Task":
        """Where the rows are at hand."""
        return cls(federation.shape, len(federation.classes), federation.names, federation.counts, federation.schema)

    @classmethod
    def of_description(cls, known: Mapping[str, Any]) -> "Task":
        """From what a server tells the sites of a run, or the card of a bundle says."""
        schema = TableSchema.parse(known.get("table"), "the description")
        names, counts = tuple(known["names"]), tuple(known["counts"])
        return cls(tuple(known["shape"]), len(known["classes"]), names, counts, schema)

    @classmethod
    def of_manifest(cls, known: Mapping[str, Any]) -> "Task":
        """From the manifest of a run folder."""
        return cls.of_description({**known, "names": known["clients"]})

    @cached_property
    def clients(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> Float[Tensor, "m 1"]:
        """n_i, one row each"""
        return torch.tensor(self.counts, dtype=torch.float32)[:, None]

    @cached_property
    def sample_fraction(self) -> Float[Tensor, " m"]:
        """ρ_i = n_i / n"""
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return (counts / counts.sum()).float()


def public_input(task: Task, privacy: Privacy) -> tuple[Float[Tensor, " f"], Float[Tensor, " f"]]:
    """Mean and scale by which rows are standardised where no sum over them may leave: numbers that everybody knows."""
    features, images = task.shape[0], len(task.shape) > 1
    found = []
    for key, usual in (("public_mean", 0.5 if images else 0.0), ("public_scale", 0.25 if images else 1.0)):
        given = getattr(privacy, key)
        if len(given) not in (0, 1, features):
            raise FedSPMError(
                f"privacy.{key} has {len(given)} numbers for {features} features; give one, or one for each"
            )
        found.append(torch.tensor(given or (usual,)).expand(features).clone())
    return found[0], found[1]
