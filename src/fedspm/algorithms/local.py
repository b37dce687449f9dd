"""Local: no federation at all. Every client trains FedAvg's model on its own rows, and keeps it.

w_i: SGD on the cross-entropy of client i, from its own w_i; what the others do is never seen
"""

from fedspm.algorithms.personal import PersonalModel
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import PerClient
from fedspm.federated.steps import step


class Local(PersonalModel):
    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        exchange(self.update, shared)
        return shared

    @step(uploads={})
    def update(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:  # type: ignore[override]
        """Local steps on the client's rows; nothing leaves."""
        w = self.local_solver(
            client,
            "supervised",
            self.predictor,
            self.personal(client.private) or self.weights(shared),
            lambda moving, batch: self.loss(moving, batch, shared),
        )
        return PerClient.of(client.name), self.kept(w)
