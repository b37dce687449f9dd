"""What the router found out about some rows, on its way from the model to the answers."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedspm.base.tensors import Tensors


@dataclass(frozen=True)
class RoutingResult:
    """What the router found out about some rows: whom they resemble, and how novel they are."""

    features: Tensors  # the router's half of the embedding, which a node goes on from
    posterior: Float[Tensor, "n m"]
    components: Float[Tensor, "n m c"]
    novelty: Float[Tensor, " n"] | None  # share of known rows that look less novel; None without calibration

    def split(self, sizes: list[int]) -> "list[RoutingResult]":
        """The results of the queries that were routed as one batch, each with so many rows."""
        if len(sizes) == 1:
            return [self]
        features = {name: value.split(sizes) for name, value in self.features.items()}
        novelty = [None] * len(sizes) if self.novelty is None else self.novelty.split(sizes)
        parts = zip(self.posterior.split(sizes), self.components.split(sizes), novelty, strict=True)
        return [
            RoutingResult({name: pieces[k] for name, pieces in features.items()}, *part) for k, part in enumerate(parts)
        ]

    def without_novelty(self, rows: list[int]) -> "RoutingResult":
        """The result of these rows alone, as far as a node needs it."""
        features = {name: value[rows] for name, value in self.features.items()}
        return RoutingResult(features, self.posterior[rows], self.components[rows], None)
