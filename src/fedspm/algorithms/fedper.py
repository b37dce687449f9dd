"""FedPer: the body is federated, and every client keeps a head of its own (Arivazhagan et al. 2019).

θ ← Σ_i ρ_i θ_i,   (θ_i, head_i): local SGD on the cross-entropy of client i, from (θ, head_i); heads never leave
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.steps import step
from fedspm.federated.uploads import Update
from fedspm.mixture.heads import with_heads_refitted, with_trained_heads
from fedspm.mixture.model import HEAD, initial_head, log_likelihood
from fedspm.nn.sgd import chunks


class FedPer(FedAvg):
    bookkeeping = FedAvg.bookkeeping | {"trained"}

    def start(self, exchange: Exchange) -> Tensors:
        return Algorithm.start(self, exchange) | self.predictor.initial()

    def init_private(self, client: Client) -> Tensors:
        return initial_head(1, self.task.classes, self.predictor.dimension, client.generator("head"))

    @step(uploads={"predictor": Update()})
    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Local steps on body and head; the head stays."""
        head = with_trained_heads(client.private)
        start = self.predictor.take(shared) | {name: head[name] for name in HEAD}
        moved = self.local_solver(
            client, "supervised", self.predictor, start, lambda w, batch: self.loss(w, batch, shared)
        )
        private = {name: moved.pop(name) for name in HEAD}
        return Mean(client.n, **moved), private

    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """The head at the optimum for its features (`predictor.refit_heads`); nothing leaves."""
        penalty = self.settings.predictor.refit_heads
        if not penalty:
            return PerClient.of(client.name), client.private
        features, w = self.all_features(client, shared), torch.ones(client.n, 1, device=client.x.device)
        return PerClient.of(client.name), with_heads_refitted(client.private, features, client.y, w, penalty)

    @torch.no_grad()
    def all_features(self, client: Client, shared: Tensors) -> Tensor:
        return torch.cat([self.predictor(shared, self.standardise(shared, x)) for x in chunks(client.x)])

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        return log_likelihood(private["head.weight"], private["head.bias"], embedding["predictor"])[:, 0].exp()
