"""FedAvgFT: FedAvg, then local fine-tuning before evaluation (Wang et al. 2019)."""

from pydantic import Field

from fedspm.algorithms.personal import PersonalModel
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import PerClient


class FedAvgFT(PersonalModel):
    class Options(Strict):
        epochs: int = Field(1, ge=0, description="passes over the client's rows")

    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        return PerClient.of(client.name), self.kept(self.fine_tuned(client, shared, self.options.epochs))
