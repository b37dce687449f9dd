"""Ditto: FedAvg, and beside it a personal model that is held near the global one (Li et al. 2021).

v_i:  min_v  cross-entropy_i(v) + λ/2 ‖v − w_t‖²
"""

from pydantic import Field
from torch import Tensor

from fedspm.algorithms.fedprox import squared_distance
from fedspm.algorithms.personal import PersonalModel
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean
from fedspm.nn.sgd import Batch


class Ditto(PersonalModel):
    class Options(Strict):
        lam: float = Field(0.1, ge=0, description="λ, how strongly the personal model is held near the global one")

    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        reply, _ = super().update(client, shared)
        lam: float = self.options.lam
        v = self.personal(client.private) or self.weights(shared)

        def near(moving: Tensors, batch: Batch) -> Tensor:
            return self.loss(moving, batch, shared) + lam / 2 * squared_distance(moving, shared, self.predictor.fixed)

        return reply, self.kept(self.local_solver(client, "personal", self.predictor, v, near))
