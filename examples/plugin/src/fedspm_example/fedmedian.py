"""FedMedian: FedAvg with the coordinate-wise median in place of the mean (Yin et al. 2018).

w ← median_i w_i: a minority of clients that send nonsense cannot move it far.
"""

from fedspm.algorithms.fedavg import FedAvg
from fedspm.federated.replies import PerClient
from fedspm.federated.steps import step
from fedspm.federated.uploads import Copy


class FedMedian(FedAvg):
    def server_round(self, shared, exchange):
        answers = exchange(self.update, shared)
        return shared | {name: answers.stack(name, answers.answered).median(0).values for name in answers.names}

    @step(uploads={"predictor": Copy(), "head": Copy()})  # kept apart by client: a mean would not do
    def update(self, client, shared):
        return PerClient.of(client.name, **self.trained(client, shared)), client.private
