"""FedSPM: federated EM for a semiparametric mixture (the paper's Algorithm 1).

A round is two exchanges. In the first, clients compute responsibilities and send their column sums τ; in the second
they get everybody's τ, take local steps on the supervised and the DRM block, and the server averages. With
`wire.exchanges = 1` they do both at once (`advance`), with the others' τ of the round before.
"""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import INPUT
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.serving import Servable
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Count, Sum, Update, Upload
from fedspm.mixture import em, routing
from fedspm.mixture.algorithm import MixtureAlgorithm, in_one_exchange, in_two_exchanges
from fedspm.mixture.density_ratio import TILTS, all_mixing, drm_block, extrapolate, initial_tilts, log_prior
from fedspm.mixture.e_step import EvidenceCache, both_steps, e_step
from fedspm.mixture.first_responsibilities import TAU
from fedspm.mixture.heads import with_heads_refitted
from fedspm.mixture.model import HEAD, TILT, initial_head, log_likelihood, log_ratio, of_label
from fedspm.mixture.normalisers import EXCHANGES, OCCUPANCY, as_trained, normalised, normalises, occupancy
from fedspm.mixture.onboarding import Onboarding
from fedspm.nn.sgd import Batch

PARAMETERS: dict[str, Upload] = {"predictor": Update(), "router": Update()} | TILTS  # θ, ν, all ξ and γ


class FedSPM(MixtureAlgorithm, Servable):
    routes = True
    variants = True
    has_components = True
    bookkeeping = MixtureAlgorithm.bookkeeping | {"h"}
    server_only = frozenset({"trained"})

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        copies = settings.components if settings.variant == "cx" else 1
        self.predictor = self.encoder("predictor", copies)
        self.router = self.encoder("router", copies)
        self.onboarding = Onboarding(self)

    # -- Algorithm 1, the server's side ------------------------------------------------------------------------------

    def start(self, exchange: Exchange) -> Tensors:
        shared = super().start(exchange) | self.predictor.initial() | self.router.initial()
        shared |= initial_tilts(self.task, self.settings.components, self.router.dimension, self.settings.seed)
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        shared = as_trained(shared)
        if self.settings.wire.exchanges == 1:
            answer = exchange(self.advance, shared)
            update, tau = answer.mean.result(), answer.rows.stack("tau", self.task.names, shared["tau"])
        else:
            tau = exchange(self.expect, shared).stack("tau", self.task.names, shared["tau"])  # lines 3–6
            update = exchange(self.maximise, shared, tau=tau).result()  # lines 7–14
        update = extrapolate(self, shared, update, exchange.round)
        return shared | update | {"tau": tau}

    def prepared(self, shared: Tensors, exchange: Exchange) -> Tensors:
        """γ as eq. 4 has it, in place of what SGD left (`em.normalisers`)."""
        return super().prepared(normalised(self, shared, exchange) if normalises(self) else shared, exchange)

    # -- Algorithm 1, the client's side ------------------------------------------------------------------------------

    def init_private(self, client: Client) -> Tensors:
        sizes = (self.settings.components, self.task.classes, self.predictor.dimension)
        return super().init_private(client) | initial_head(*sizes, client.generator("head"))

    @step(uploads=TAU, used=in_two_exchanges)
    def expect(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """E-step (lines 4–5): responsibilities of all local rows by eq. 7; their sums τ leave."""
        return e_step(self, client, shared)

    @step(uploads=PARAMETERS, used=in_two_exchanges)
    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        """M-step (lines 9–12): π by eq. 9, the supervised block and the DRM block by local SGD (eq. 8)."""
        mixing = em.mixing_weights(tau[client.index], client.n)
        cache = EvidenceCache.copy_of(client.private)
        private, predictor = self.supervised_block(client, shared, mixing, cache)
        router = drm_block(self, self.router, client, shared, client.private["responsibilities"], tau, cache)
        return Mean(client.n, **predictor, **router), private | {"mixing": mixing} | cache.private()

    @step(uploads=PARAMETERS | TAU, used=in_one_exchange)
    def advance(self, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
        """Both steps in one exchange, with the others' τ of the round before."""
        return both_steps(self, client, shared)

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """The two parts of eq. 7 that depend on a row: log dP_ic/dG(x) and log P_ic(y | x)."""
        x = self.standardise(shared, x)
        ratio = log_ratio(shared["tilt.xi"][client.index], shared["tilt.gamma"][client.index], self.router(shared, x))
        return {"ratio": ratio, "label": self.label_likelihood(client.private, shared, x, y)}

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """w_ijc by eq. 7"""
        return em.log_responsibilities(mixing.log(), evidence["ratio"], evidence["label"]).exp()

    def label_likelihood(self, private: Tensors, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        """log P_ic(y_ij | x_ij) of standardised rows, under one client's heads"""
        likelihood = log_likelihood(private["head.weight"], private["head.bias"], self.predictor(shared, x))
        return of_label(likelihood, y)

    def supervised_block(
        self, client: Client, shared: Tensors, mixing: Tensor, cache: EvidenceCache
    ) -> tuple[Tensors, Tensors]:
        """α_i, β_i, θ by ascent on Q₁ᵢ (line 11): the client's new private state, and θ"""

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(moving, self.standardise(shared, batch.x), training=True)
            label = of_label(log_likelihood(moving["head.weight"], moving["head.bias"], features), batch.y)
            cache.record("label", batch.row, label)
            return em.supervised_loss(batch.extra["responsibilities"], label)

        start = self.predictor.take(shared) | {name: client.private[name] for name in HEAD}
        w = client.private["responsibilities"]
        scale = em.head_scale(mixing, self.settings.em.scaled_steps)
        moved = self.local_solver(client, "supervised", self.predictor, start, objective, scale, responsibilities=w)
        return client.private | {name: moved.pop(name) for name in HEAD}, moved

    # -- before an evaluation (mixture/normalisers.py) ---------------------------------------------------------------

    @step(when="evaluation", uploads={}, used=normalises)
    def embed_rows(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """Keep h of all rows at hand, for the exchanges that follow; nothing leaves."""
        h = self.onboarding.all_features(self.router, shared, client.x)
        return PerClient.of(client.name), client.private | {"h": h}

    @step(when="evaluation", uploads=OCCUPANCY, used=normalises, times=EXCHANGES)
    def occupy(self, client: Client, shared: Tensors, gamma: Tensor, tau: Tensor) -> tuple[Mean, Tensors]:
        """How the client's rows are divided among the components of all clients, Σ_j P_j(i, c), sums of products of
        shares, Σ_j r_j and −Σ_j log r_j (eq. 4 and 5), from at least `min_count` rows."""
        shown = client.n if client.n >= self.settings.min_count else 0
        return Mean(1, **occupancy(shared["tilt.xi"], gamma, tau, client.private["h"][:shown])), client.private

    def personalise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """Heads at the optimum for their features (`predictor.refit_heads`); h is no longer needed."""
        private = {name: value for name, value in client.private.items() if name != "h"}
        if (penalty := self.settings.predictor.refit_heads) and "responsibilities" in private:
            g = self.onboarding.all_features(self.predictor, shared, client.x).to(client.x.device)
            private = with_heads_refitted(private, g, client.y, private["responsibilities"], penalty)
        return PerClient.of(client.name), private

    # -- inference ---------------------------------------------------------------------------------------------------

    def routing_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"router": self.router(shared, x)}

    def predicting_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, x)}

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"]:
        """eq. 10, with ρ_i π_ic = τ_ic / n: the server needs nothing that it does not have"""
        tau = shared["tau"]
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], embedding["router"])
        return routing.log_client_scores(log_prior(self.task, tau), all_mixing(self.task, tau).log(), ratio)

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
        return routing.log_component_posterior(all_mixing(self.task, shared["tau"]).log(), ratio)

    def router_part(self, shared: Tensors) -> Tensors:
        return self.router.take(shared) | {name: shared[name] for name in (*INPUT, *TILT, "tau")}

    def node_part(self, client: int, private: Tensors, shared: Tensors) -> Tensors:
        own = {name: shared[name][client : client + 1] for name in TILT}
        kept = {name: private[name] for name in (*HEAD, "mixing")}
        return self.predictor.take(shared) | {name: shared[name] for name in INPUT} | own | kept

    # -- clients that join after training (mixture/onboarding.py) ----------------------------------------------------

    @step(
        when="after training",
        uploads={"count": Count(apart=True), "mass": Sum(apart=True), "sum": Sum(apart=True)},
    )
    def summarise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """A sketch of the client's rows, for newcomers: at most 64 clusters of h(x) of at least `min_count` rows each,
        their counts, Σ h and Σ r, r = 1 / Σ τ exp(γ + ξᵀ h)."""
        return self.onboarding.summary(client, self.onboarding.among_counted(shared)), client.private

    @step(when="after training", uploads={}, in_process_only=True)
    def cache_features(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """Keep h and log Σ τ exp(γ + ξᵀ h) of all rows at hand, for the exchanges that follow; nothing leaves."""
        return PerClient.of(client.name), client.private | self.onboarding.features(client, shared)

    @step(when="after training", uploads={"value": Sum(), "gamma": Sum(), "xi": Sum()}, in_process_only=True)
    def baseline_gradient(
        self, client: Client, shared: Tensors, xi: Tensor, gamma: Tensor, log_tau: Tensor
    ) -> tuple[Mean, Tensors]:
        """What the client's rows say of a newcomer's tilt: their part of Q̃₂, and its gradient by γ and ξ."""
        tilt = {"tilt.xi": xi.cpu(), "tilt.gamma": gamma.cpu(), "log_tau": log_tau.cpu()}
        return Mean(1, **self.onboarding.gradient_at(client, tilt)), client.private
