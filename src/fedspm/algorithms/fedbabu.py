"""FedBABU: the body is federated, the head stays as it began until it is fine-tuned for evaluation (Oh et al. 2022)."""

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.steps import step
from fedspm.federated.uploads import Update
from fedspm.mixture.model import HEAD, log_likelihood
from fedspm.nn.sgd import Batch


class FedBABU(FedAvg):
    class Options(Strict):
        epochs: int = Field(1, ge=0, description="passes over the client's rows to fine-tune its head")

    @step(uploads={"predictor": Update()})
    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Local steps on the body, with the head that all began with."""

        def loss(w: Tensors, batch: Batch) -> Tensor:
            return self.loss(w | {name: shared[name] for name in HEAD}, batch, shared)

        body = self.local_solver(client, "supervised", self.predictor, self.predictor.take(shared), loss)
        return Mean(client.n, **body), client.private

    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        tuned = self.fine_tuned(client, shared, self.options.epochs, fixed=self.predictor.parameters)
        return PerClient.of(client.name), {name: tuned[name] for name in HEAD}

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        head = private or shared
        return log_likelihood(head["head.weight"], head["head.bias"], embedding["predictor"])[:, 0].exp()
