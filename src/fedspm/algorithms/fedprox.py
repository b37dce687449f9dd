"""FedProx: FedAvg with a proximal term in the local objective (Li et al. 2020).

min_w  cross-entropy_i(w) + μ/2 ‖w − w_t‖²
"""

from collections.abc import Collection

from pydantic import Field
from torch import Tensor

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.nn.sgd import Batch


class FedProx(FedAvg):
    class Options(Strict):
        mu: float = Field(0.01, ge=0, description="μ, weight of the proximal term")

    def loss(self, w: Tensors, batch: Batch, shared: Tensors) -> Tensor:
        mu: float = self.options.mu
        return super().loss(w, batch, shared) + mu / 2 * squared_distance(w, shared, self.predictor.fixed)


def squared_distance(w: Tensors, anchor: Tensors, fixed: Collection[str]) -> Tensor:
    """‖w − anchor‖² over the tensors that are descended: not over frozen ones or running statistics."""
    parts = [(value - anchor[name]).square().sum() for name, value in w.items() if name not in fixed]
    return sum(parts[1:], start=parts[0])
