"""FedEM: C predictors that all clients share, mixed with weights of each client's own (Marfoq et al. 2021).

E:  w_ijc ∝ π_ic P_c(y_ij | x_ij)        M:  π_ic = τ_ic / n_i,   min over the C predictors of −Σ_c w_ijc log P_c
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Update, Upload
from fedspm.mixture import em
from fedspm.mixture.algorithm import MixtureAlgorithm, in_one_exchange, in_two_exchanges
from fedspm.mixture.e_step import EvidenceCache, both_steps, e_step
from fedspm.mixture.first_responsibilities import TAU
from fedspm.mixture.model import HEAD, initial_shared_heads, log_likelihood, of_label
from fedspm.mixture.routing import class_probabilities
from fedspm.nn.sgd import Batch

MODELS: dict[str, Upload] = {"predictor": Update(), "head": Update()}


class FedEM(MixtureAlgorithm):
    has_components = True
    em = MixtureAlgorithm.em - {"server_step"}

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.predictor = self.encoder("predictor", settings.components)

    def start(self, exchange: Exchange) -> Tensors:
        sizes = (self.settings.components, self.task.classes, self.predictor.dimension)
        shared = super().start(exchange) | self.predictor.initial() | initial_shared_heads(*sizes, self.settings.seed)
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        update, tau = self.em_round(shared, exchange)
        return shared | update | {"tau": tau}

    def em_round(self, shared: Tensors, exchange: Exchange) -> tuple[Tensors, Float[Tensor, "m c"]]:
        """The averaged update and τ: in two exchanges, or in one with the others' τ of the round before."""
        if self.settings.wire.exchanges == 1:
            answer = exchange(self.advance, shared)
            return answer.mean.result(), answer.rows.stack("tau", self.task.names, shared["tau"])
        tau = exchange(self.expect, shared).stack("tau", self.task.names, shared["tau"])
        return exchange(self.maximise, shared, tau=tau).result(), tau

    @step(uploads=TAU, used=in_two_exchanges)
    def expect(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """E-step: responsibilities of all local rows; their sums τ leave."""
        return e_step(self, client, shared)

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        return self.label_evidence(shared, self.standardise(shared, x), y)

    def label_evidence(self, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """log P_c(y_ij | x_ij) of standardised rows"""
        return {"label": of_label(self.log_likelihood(shared, self.predictor(shared, x)), y)}

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """w_ijc ∝ π_ic P_c(y_ij | x_ij), and whatever else a row says of its component"""
        return torch.softmax(sum(evidence.values(), start=mixing.log()), dim=1)

    @step(uploads=MODELS, used=in_two_exchanges)
    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        """M-step: mixing weights, which stay, and local steps on all C predictors."""
        mixing, cache = em.mixing_weights(tau[client.index], client.n), EvidenceCache.copy_of(client.private)
        update = self.predictors(client, shared, mixing, cache)
        return Mean(client.n, **update), client.private | {"mixing": mixing} | cache.private()

    @step(uploads=MODELS | TAU, used=in_one_exchange)
    def advance(self, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
        """Both steps in one exchange."""
        return both_steps(self, client, shared)

    def predictors(self, client: Client, shared: Tensors, mixing: Tensor, cache: EvidenceCache) -> Tensors:
        """Local steps on all C predictors, each row weighted by its responsibilities."""

        def objective(w: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(w, self.standardise(shared, batch.x), training=True)
            label = of_label(self.log_likelihood(w, features), batch.y)
            cache.record("label", batch.row, label)
            return em.supervised_loss(batch.extra["responsibilities"], label)

        start = self.predictor.take(shared) | {name: shared[name] for name in HEAD}
        w = client.private["responsibilities"]
        scale = em.head_scale(mixing, self.settings.em.scaled_steps)
        return self.local_solver(client, "supervised", self.predictor, start, objective, scale, responsibilities=w)

    def log_likelihood(self, state: Tensors, features: Tensor) -> Float[Tensor, "n c k"]:
        return log_likelihood(state["head.weight"], state["head.bias"], features)

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, self.standardise(shared, x))}

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """Σ_c π_ic P_c(k | x): probabilities are mixed, not logits"""
        likelihood = self.log_likelihood(shared, embedding["predictor"])
        return class_probabilities(private["mixing"].log().expand(len(likelihood), -1), likelihood)
