"""FedEM: C predictors that all clients share, mixed with weights of each client's own (Marfoq et al. 2021).

E:  w_ijc ∝ π_ic P_c(y_ij | x_ij)        M:  π_ic = τ_ic / n_i,   min over the C predictors of −Σ_c w_ijc log P_c
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.core.algorithm import Exchange, Task
from fedspm.core.local import Batch, Client
from fedspm.core.replies import Mean, Tensors
from fedspm.core.settings import Settings
from fedspm.mixture import em
from fedspm.mixture.components import ComponentAlgorithm
from fedspm.mixture.model import HEAD, initial_shared_heads, log_likelihood
from fedspm.mixture.routing import class_probabilities


class FedEM(ComponentAlgorithm):
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **ComponentAlgorithm.leaves,
        "maximise": frozenset({"predictor", "head"}),
    }

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.predictor = self.encoder("predictor", settings.components)

    def start(self, exchange: Exchange) -> Tensors:
        sizes = (self.settings.components, self.task.classes, self.predictor.dimension)
        shared = super().start(exchange) | self.predictor.initial() | initial_shared_heads(*sizes, self.settings.seed)
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        tau = exchange(self.expect, shared).stack("tau", self.task.names, shared["tau"])
        return shared | exchange(self.maximise, shared, tau=tau).result() | {"tau": tau}

    def posterior(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        return torch.softmax(self.log_joint(client, shared, self.standardise(shared, x), y), dim=1)

    def log_joint(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        """log π_ic + log P_c(y_ij | x_ij)"""
        likelihood = em.of_label(self.log_likelihood(shared, self.predictor(shared, x)), y)
        return client.private["mixing"].log() + likelihood

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        mixing = em.mixing_weights(tau[client.index], client.n)
        return Mean(client.n, **self.predictors(client, shared, mixing)), client.private | {"mixing": mixing}

    def predictors(self, client: Client, shared: Tensors, mixing: Tensor) -> Tensors:
        """Local steps on all C predictors, each row weighted by its responsibilities."""
        responsibilities = client.private["responsibilities"]

        def objective(w: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(w, self.standardise(shared, batch.x), training=True)
            likelihood = em.of_label(self.log_likelihood(w, features), batch.y)
            return em.supervised_loss(responsibilities[batch.row], likelihood)

        start = self.predictor.take(shared) | {name: shared[name] for name in HEAD}
        return self.local_solver(client, "supervised", self.predictor, start, objective, self.head_scale(mixing))

    def log_likelihood(self, state: Tensors, features: Tensor) -> Float[Tensor, "n c k"]:
        return log_likelihood(state["head.weight"], state["head.bias"], features)

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, self.standardise(shared, x))}

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """Σ_c π_ic P_c(k | x): probabilities are mixed, not logits"""
        likelihood = self.log_likelihood(shared, embedding["predictor"])
        return class_probabilities(private["mixing"].log().expand(len(likelihood), -1), likelihood)
