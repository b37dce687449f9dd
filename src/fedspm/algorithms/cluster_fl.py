"""ClusterFL: C models; a client takes the one with the lowest loss on its rows and updates only that.

The paper compares with IFCA (Ghosh et al. 2020):   ĉ_i = argmin_c loss_i(w_c),   w_c ← mean over {i: ĉ_i = c} of w_i
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Update
from fedspm.mixture.algorithm import MixtureAlgorithm
from fedspm.mixture.model import HEAD, initial_shared_heads, log_likelihood, of_label
from fedspm.nn.sgd import Batch, chunks


class ClusterFL(MixtureAlgorithm):
    em = frozenset({"start", "hold"})
    bookkeeping = MixtureAlgorithm.bookkeeping | {"cluster", "mixing"}

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.predictor = self.encoder("predictor", settings.components)

    def start(self, exchange: Exchange) -> Tensors:
        clusters = self.settings.components
        heads = initial_shared_heads(clusters, self.task.classes, self.predictor.dimension, self.settings.seed)
        shared = super().start(exchange) | self.predictor.initial()
        shared |= {f"{name}.{c}": heads[name][c : c + 1] for name in HEAD for c in range(clusters)}
        self.first_tau(shared, exchange)  # the first responsibilities, which stay at the clients
        return shared

    def shapes(self) -> dict[str, torch.Size]:
        return Algorithm.shapes(self)  # no τ

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        return shared | exchange(self.update, shared).result()

    def init_private(self, client: Client) -> Tensors:
        return {"cluster": torch.tensor(0)}  # until it is asked for the first time

    @step(uploads={"predictor": Update(), "head": Update()}, partial=True)
    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Local steps on the one model that the client chose, so that the server learns which."""
        c = self.chosen(client, shared)

        def loss(w: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(w, self.standardise(shared, batch.x), training=True, only=c)
            return -of_label(self.log_likelihood(w, c, features), batch.y)[:, 0]

        start = self.predictor.take(shared, c) | {f"{name}.{c}": shared[f"{name}.{c}"] for name in HEAD}
        moved = self.local_solver(client, "supervised", self.predictor, start, loss)
        return Mean(client.n, **moved), client.private | {"cluster": torch.tensor(c)}

    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """The models have moved since it chose, and it may not have been asked at all."""
        return PerClient.of(client.name), client.private | {"cluster": torch.tensor(self.chosen(client, shared))}

    def chosen(self, client: Client, shared: Tensors) -> int:
        """The model with the lowest loss; in the first rounds the cluster in which k-means put most of the rows."""
        if self.held(client.round):
            return int(client.private["responsibilities"].sum(0).argmax())
        loss = torch.zeros(self.settings.components)
        with torch.no_grad():
            for x, y in zip(chunks(client.x), chunks(client.y), strict=True):
                features = self.embed(shared, x)["predictor"]
                for c in range(len(loss)):
                    loss[c] -= of_label(self.log_likelihood(shared, c, features[:, c : c + 1]), y).sum().cpu()
        return int(loss.argmin())

    def log_likelihood(self, state: Tensors, c: int, features: Tensor) -> Float[Tensor, "n 1 k"]:
        return log_likelihood(state[f"head.weight.{c}"], state[f"head.bias.{c}"], features)

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, self.standardise(shared, x))}

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        c = int(private["cluster"])
        return self.log_likelihood(shared, c, embedding["predictor"][:, c : c + 1])[:, 0].exp()
