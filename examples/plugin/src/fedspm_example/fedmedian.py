"""FedMedian: FedAvg with the coordinate-wise median in place of the mean (Yin et al. 2018).

w ← median_i w_i: a minority of clients that send nonsense cannot move it far.
"""

from fedspm.algorithms.fedavg import FedAvg
from fedspm.federated.replies import PerClient


class FedMedian(FedAvg):
    def server_round(self, shared, exchange):
        answers = exchange(self.update, shared)
        clients = list(answers.rows)  # whoever answered
        return shared | {name: answers.stack(name, clients).median(0).values for name in self.weights(shared)}

    def update(self, client, shared):
        return PerClient.of(client.name, **self.trained(client, shared)), client.private
