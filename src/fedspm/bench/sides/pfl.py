"""The job on Apple's pfl, in one process. Its data sets keep their batches cut: it gathers none and draws no order."""

from functools import partial

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .job import CHUNK, Job, Turns, read


class Network(nn.Module):
    """With the two functions that pfl asks of a module."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        return {"loss": float(self.loss(x, y))}


class Evaluation(TrainingProcessCallback):  # type: ignore[misc]
    def __init__(self, job: Job):
        self._job, self._turns = job, Turns()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._turns.done(self._job.accuracy(self._job.network))
        return False, Metrics()


def main(path: str) -> None:
    job = read(path)
    users = {i: Dataset(raw_data=list(rows), user_id=i) for i, rows in enumerate(job.train)}
    sampler = get_user_sampler("minimize_reuse", list(users))
    module = Network(job.network)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds,  # of every client's own rows, which nobody else does
            train_cohort_size=len(users),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=FederatedDataset(users.__getitem__, sampler), val_data=None),
        model=PyTorchModel(
            model=module,
            local_optimizer_create=partial(torch.optim.SGD, momentum=job.momentum, fused=True),
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.learning_rate, local_batch_size=job.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=CHUNK),
        callbacks=[Evaluation(job)],
        send_metrics_to_platform=False,
    )
