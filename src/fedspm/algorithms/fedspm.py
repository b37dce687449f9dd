"""FedSPM: federated EM for a semiparametric mixture (the paper's Algorithm 1).

A round is two exchanges. In the first, clients compute responsibilities and send their column sums τ; in the second
they get everybody's τ, take local steps on the supervised and the DRM block, and the server averages. With
`wire.exchanges = 1` they do both at once (`advance`), with the others' τ of the round before.
"""

from collections.abc import Mapping
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import INPUT, Exchange
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean
from fedspm.federated.serving import Servable
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture import em, routing
from fedspm.mixture.e_step import as_private, note, notebook
from fedspm.mixture.model import HEAD, TILT, initial_head, log_likelihood, log_ratio
from fedspm.mixture.onboarding import Newcomers
from fedspm.nn.sgd import Batch


class FedSPM(Newcomers, Servable):
    routes = True
    variants = True
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **Newcomers.leaves,
        "maximise": frozenset({"predictor", "router", "tilt"}),
        "advance": frozenset({"predictor", "router", "tilt", "tau"}),
    }

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        copies = settings.components if settings.variant == "cx" else 1
        self.predictor = self.encoder("predictor", copies)
        self.router = self.encoder("router", copies)

    # -- Algorithm 1, the server's side ------------------------------------------------------------------------------

    def start(self, exchange: Exchange) -> Tensors:
        shared = super().start(exchange) | self.predictor.initial() | self.router.initial()
        shared |= self.first_tilts(self.settings.components)
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        update, tau = self.em_round(shared, exchange)  # lines 3–14: `expect`, then `maximise`
        return shared | self.extrapolate(shared, update, exchange.round) | {"tau": tau}

    # -- the client's side -------------------------------------------------------------------------------------------

    def init_private(self, client: Client) -> Tensors:
        sizes = (self.settings.components, self.task.classes, self.predictor.dimension)
        return super().init_private(client) | initial_head(*sizes, client.generator("head"))

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        x = self.standardise(shared, x)
        ratio = log_ratio(shared["tilt.xi"][client.index], shared["tilt.gamma"][client.index], self.router(shared, x))
        return {"ratio": ratio, "label": self.label_likelihood(client.private, shared, x, y)}

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """w by eq. 7 (lines 4–5: `expect` has it of all rows and sends τ)"""
        return em.log_responsibilities(mixing.log(), evidence["ratio"], evidence["label"]).exp()

    def label_likelihood(self, private: Tensors, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        """log P_ic(y_ij | x_ij) of standardised rows, under one client's heads"""
        likelihood = log_likelihood(private["head.weight"], private["head.bias"], self.predictor(shared, x))
        return em.of_label(likelihood, y)

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        """M-step (lines 9–12): π in closed form, the supervised block and the DRM block by local SGD."""
        mixing = em.mixing_weights(tau[client.index], client.n)
        evidence = notebook(client.private)
        private, predictor = self.supervised_block(client, shared, mixing, evidence)
        router = self.drm_block(client, shared, client.private["responsibilities"], tau, evidence)
        return Mean(client.n, **predictor, **router), private | {"mixing": mixing} | as_private(evidence)

    def supervised_block(
        self, client: Client, shared: Tensors, mixing: Tensor, evidence: Tensors | None
    ) -> tuple[Tensors, Tensors]:
        """α_i, β_i, θ by ascent on Q₁ᵢ"""

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(moving, self.standardise(shared, batch.x), training=True)
            likelihood = log_likelihood(moving["head.weight"], moving["head.bias"], features)
            label = em.of_label(likelihood, batch.y)
            note(evidence, "label", batch.row, label)
            return em.supervised_loss(batch.extra["responsibilities"], label)

        start = self.predictor.take(shared) | {name: client.private[name] for name in HEAD}
        w = client.private["responsibilities"]
        scale = self.head_scale(mixing)
        moved = self.local_solver(client, "supervised", self.predictor, start, objective, scale, responsibilities=w)
        return client.private | {name: moved.pop(name) for name in HEAD}, moved

    # -- inference ---------------------------------------------------------------------------------------------------

    def routing_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"router": self.router(shared, x)}

    def predicting_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, x)}

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"]:
        """eq. 10, with ρ_i π_ic = τ_ic / n: the server needs nothing that it does not have"""
        tau = shared["tau"]
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], embedding["router"])
        return routing.log_client_scores(self.log_prior(tau), self.mixing(tau).log(), ratio)

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """eq. 11"""
        ratio = log_ratio(shared["tilt.xi"][client], shared["tilt.gamma"][client], embedding["router"])
        posterior = routing.log_component_posterior(private["mixing"].log(), ratio)
        likelihood = log_likelihood(private["head.weight"], private["head.bias"], embedding["predictor"])
        return routing.class_probabilities(posterior, likelihood)

    # -- in two places -----------------------------------------------------------------------------------------------

    def log_components(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m c"]:
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], embedding["router"])
        return routing.log_component_posterior(self.mixing(shared["tau"]).log(), ratio)

    def router_part(self, shared: Tensors) -> Tensors:
        return self.router.take(shared) | {name: shared[name] for name in (*INPUT, *TILT, "tau")}

    def node_part(self, client: int, private: Tensors, shared: Tensors) -> Tensors:
        own = {name: shared[name][client : client + 1] for name in TILT}
        kept = {name: private[name] for name in (*HEAD, "mixing")}
        return self.predictor.take(shared) | {name: shared[name] for name in INPUT} | own | kept
