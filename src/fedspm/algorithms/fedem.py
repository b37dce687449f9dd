"""FedEM: C predictors that all clients share, mixed with weights of each client's own (Marfoq et al. 2021).

E:  w_ijc ∝ π_ic P_c(y_ij | x_ij)        M:  π_ic = τ_ic / n_i,   min over the C predictors of −Σ_c w_ijc log P_c
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Exchange
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture import em
from fedspm.mixture.e_step import ComponentAlgorithm, as_private, note, notebook
from fedspm.mixture.model import HEAD, initial_shared_heads, log_likelihood
from fedspm.mixture.routing import class_probabilities
from fedspm.nn.sgd import Batch


class FedEM(ComponentAlgorithm):
    em = ComponentAlgorithm.em - {"server_step"}
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **ComponentAlgorithm.leaves,
        "maximise": frozenset({"predictor", "head"}),
        "advance": frozenset({"predictor", "head", "tau"}),
    }

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.predictor = self.encoder("predictor", settings.components)

    def start(self, exchange: Exchange) -> Tensors:
        sizes = (self.settings.components, self.task.classes, self.predictor.dimension)
        shared = super().start(exchange) | self.predictor.initial() | initial_shared_heads(*sizes, self.settings.seed)
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        update, tau = self.em_round(shared, exchange)
        return shared | update | {"tau": tau}

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        return self.label_evidence(shared, self.standardise(shared, x), y)

    def label_evidence(self, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """log P_c(y_ij | x_ij) of standardised rows"""
        return {"label": em.of_label(self.log_likelihood(shared, self.predictor(shared, x)), y)}

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """w_ijc ∝ π_ic P_c(y_ij | x_ij), and whatever else a row says of its component"""
        return torch.softmax(sum(evidence.values(), start=mixing.log()), dim=1)

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        mixing, evidence = em.mixing_weights(tau[client.index], client.n), notebook(client.private)
        update = self.predictors(client, shared, mixing, evidence)
        return Mean(client.n, **update), client.private | {"mixing": mixing} | as_private(evidence)

    def predictors(self, client: Client, shared: Tensors, mixing: Tensor, evidence: Tensors | None) -> Tensors:
        """Local steps on all C predictors, each row weighted by its responsibilities."""

        def objective(w: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(w, self.standardise(shared, batch.x), training=True)
            label = em.of_label(self.log_likelihood(w, features), batch.y)
            note(evidence, "label", batch.row, label)
            return em.supervised_loss(batch.extra["responsibilities"], label)

        start = self.predictor.take(shared) | {name: shared[name] for name in HEAD}
        w = client.private["responsibilities"]
        scale = self.head_scale(mixing)
        return self.local_solver(client, "supervised", self.predictor, start, objective, scale, responsibilities=w)

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
