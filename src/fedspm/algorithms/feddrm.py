"""FedDRM: one component and one head per client, shared encoders, routing by density ratios (Wang et al. 2026).

FedSPM with C = 1: the mixture is gone, and what is left of Q̃₂ is multinomial logistic regression of the client on h(x).

`options.joint` is what the authors' code does instead: one encoder g for both tasks, and in every local step

    0.9 · cross-entropy of the label + 0.1 · cross-entropy of the client + ½ · 5·10⁻⁴ ‖parameters‖²

with routing by argmax_i γ_i + ξ_iᵀ g(x), without the prior ρ_i.
"""

from collections.abc import Mapping

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture import em
from fedspm.mixture.density_ratio import log_prior
from fedspm.mixture.model import HEAD, TILT, log_likelihood, log_ratio, of_label
from fedspm.nn.sgd import Batch

LABEL_SHARE, WEIGHT_DECAY = 0.9, 5e-4  # configs/feddrm.yaml of the authors


class FedDRM(FedSPM):
    variants = False
    has_components = False
    em = frozenset({"start", "server_step", "normalisers"})

    class Options(Strict):
        joint: bool = Field(False, description="one encoder, one loss and no prior, as in the authors' code")

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings.model_copy(update={"components": 1, "variant": "1x"}), task, networks)
        if self.options.joint:
            self.encoders.remove(self.router)
            self.router = self.predictor
            trained = {  # as in the authors' code
                "em": settings.em.model_copy(update={"normalisers": "trained"}),
                "predictor": settings.predictor.model_copy(update={"refit_heads": 0.0}),
            }
            self.settings = self.settings.model_copy(update=trained)

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        if not self.options.joint:
            return super().maximise(client, shared, tau)

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(moving, self.standardise(shared, batch.x), training=True)
            likelihood = log_likelihood(moving["head.weight"], moving["head.bias"], features)
            w = batch.extra["responsibilities"]
            label = em.supervised_loss(w, of_label(likelihood, batch.y))
            ratio = log_ratio(moving["tilt.xi"], moving["tilt.gamma"], features)
            whose = em.drm_loss(w, ratio, tau.log(), batch.client)
            size = sum(value.square().sum() for name, value in moving.items() if name not in self.predictor.fixed)
            return LABEL_SHARE * label + (1 - LABEL_SHARE) * whose + WEIGHT_DECAY / 2 * size

        start = self.predictor.take(shared) | {name: shared[name] for name in TILT}
        start |= {name: client.private[name] for name in HEAD}
        w = client.private["responsibilities"]
        moved = self.local_solver(client, "supervised", self.predictor, start, objective, responsibilities=w)
        private = client.private | {name: moved.pop(name) for name in HEAD}
        return Mean(client.n, **moved), private

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        if not self.options.joint:
            return super().embed(shared, x)
        features = self.predictor(shared, self.standardise(shared, x))
        return {"predictor": features, "router": features}

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"]:
        scores = super().log_scores(shared, embedding)
        return scores - log_prior(self.task, shared["tau"]) if self.options.joint else scores
