"""FedAvg: one global model, averaged after local steps (McMahan et al. 2017).

w ← Σ_i ρ_i w_i,   w_i: local SGD on the cross-entropy of client i, from w
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Update
from fedspm.mixture.model import HEAD, initial_shared_heads, log_likelihood, of_label
from fedspm.nn.sgd import Batch


class FedAvg(Algorithm):
    em = frozenset()

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.predictor = self.encoder("predictor", 1)

    def start(self, exchange: Exchange) -> Tensors:
        heads = initial_shared_heads(1, self.task.classes, self.predictor.dimension, self.settings.seed)
        return super().start(exchange) | self.predictor.initial() | heads

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        return shared | exchange(self.update, shared).result()

    @step(uploads={"predictor": Update(), "head": Update()})
    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Local steps on the client's rows."""
        return Mean(client.n, **self.trained(client, shared)), client.private

    def trained(self, client: Client, shared: Tensors) -> Tensors:
        """w_i: the global model after a round's local steps at client i."""
        start = self.weights(shared)
        return self.local_solver(
            client, "supervised", self.predictor, start, lambda w, batch: self.loss(w, batch, shared)
        )

    def weights(self, state: Tensors) -> Tensors:
        return self.predictor.take(state) | {name: state[name] for name in HEAD}

    def loss(self, w: Tensors, batch: Batch, shared: Tensors) -> Tensor:
        """What local steps descend, of every row."""
        return self.cross_entropy(w, batch, shared)

    def cross_entropy(self, w: Tensors, batch: Batch, shared: Tensors, training: bool = True) -> Tensor:
        """Of the model w on every row of a batch."""
        features = self.predictor(w, self.standardise(shared, batch.x), training=training)
        return -of_label(log_likelihood(w["head.weight"], w["head.bias"], features), batch.y)[:, 0]

    def fine_tuned(self, client: Client, shared: Tensors, epochs: int, fixed: tuple[str, ...] = ()) -> Tensors:
        """The global model after some passes over a client's own rows, at the first round's learning rate. A body that
        is fixed normalises as in evaluation."""
        block = self.settings.predictor
        size = min(block.batch_size, client.n)

        def loss(w: Tensors, batch: Batch) -> Tensor:
            return self.cross_entropy(w, batch, shared, training=not fixed)

        return client.descend(
            "fine-tune",
            self.weights(shared),
            client.weighted(loss, "predictor"),
            client.batches("fine-tune", size, -(-epochs * client.n // size)),
            learning_rate=self.learning_rate("predictor"),
            momentum=block.momentum,
            fixed=(*fixed, *self.predictor.fixed),
        )

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, self.standardise(shared, x))}

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        return log_likelihood(shared["head.weight"], shared["head.bias"], embedding["predictor"])[:, 0].exp()
