"""FedGMM: FedEM with one shared Gaussian per component over features as well, a joint density (Wu et al. 2023).

    E:  w_ijc ∝ π_ic N(h(x_ij); μ_c, Σ_c) P_c(y_ij | x_ij)        M:  FedEM's, and μ_c, Σ_c from weighted moments
    routing:  argmax_i  ρ_i Σ_c π_ic N(h(x); μ_c, Σ_c)

The router encoder h is trained as FedDRM's is, to tell clients apart: a Gaussian likelihood alone would shrink the
features to a point, since a density of h(x) is not a density of x.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from fedspm.algorithms.fedem import MODELS, FedEM
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import INPUT
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Combined, Mean
from fedspm.federated.serving import Servable
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Count, Products, Sum, Update
from fedspm.mixture import em, routing
from fedspm.mixture.algorithm import MixtureAlgorithm, in_one_exchange, in_two_exchanges
from fedspm.mixture.density_ratio import TILTS, all_mixing, drm_block, extrapolate, initial_tilts, log_prior
from fedspm.mixture.e_step import NO_CACHE, EvidenceCache, both_steps
from fedspm.mixture.first_responsibilities import TAU
from fedspm.mixture.model import HEAD
from fedspm.nn.sgd import chunks

GAUSS = ("gauss.mean", "gauss.covariance")
RIDGE = 1e-3  # added to the diagonal of every covariance, as a share of its mean


PARAMETERS = MODELS | {"router": Update()} | TILTS


class FedGMM(FedEM, Servable):
    routes = True
    em = MixtureAlgorithm.em

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        self.router = self.encoder("router", 1)
        self.counts = task.sizes  # the one component's τ

    def start(self, exchange: Exchange) -> Tensors:
        components, d = self.settings.components, self.router.dimension
        shared = super().start(exchange) | self.router.initial()
        shared |= initial_tilts(self.task, 1, d, self.settings.seed)
        return shared | {
            "gauss.mean": torch.zeros(components, d),
            "gauss.covariance": torch.eye(d).repeat(components, 1, 1),
        }

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        update, tau = self.em_round(shared, exchange)
        update = extrapolate(self, shared, update, exchange.round)
        shared = shared | update | {"tau": tau}
        features = self.router.take(shared) | {name: shared[name] for name in INPUT}
        return shared | gaussians(exchange(self.weigh, features).totals(), shared)

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        x = self.standardise(shared, x)
        return self.label_evidence(shared, x, y) | self.routing_view(shared, x)

    @torch.no_grad()
    def refreshed(self, client: Client, shared: Tensors, evidence: Tensors) -> Tensors:
        """The Gaussians moved for all rows, whether a batch had them or not."""
        views = [self.routing_view(shared, self.standardise(shared, x)) for x in chunks(client.x)]
        return evidence | {"density": torch.cat([view["density"] for view in views])}

    @step(uploads=PARAMETERS, used=in_two_exchanges)
    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        """M-step: FedEM's, and local steps on the router."""
        mixing, cache = em.mixing_weights(tau[client.index], client.n), EvidenceCache.copy_of(client.private)
        everything = torch.ones(client.n, 1, device=client.x.device)
        router = drm_block(self, self.router, client, shared, everything, self.counts, NO_CACHE)
        reply = Mean(client.n, **self.predictors(client, shared, mixing, cache), **router)
        return reply, client.private | {"mixing": mixing} | cache.private()

    @step(uploads=PARAMETERS | TAU, used=in_one_exchange)
    def advance(self, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
        """Both steps in one exchange."""
        return both_steps(self, client, shared)

    @step(uploads={"mass": Count(), "sum": Sum(), "product": Products()})
    def weigh(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Weighted moments of the features under the new router encoder, of components that at least `min_count` rows
        make up: (Σ_j w)² / Σ_j w² of them, so that a small share of many rows is shown."""
        w = client.private["responsibilities"].cpu().double()
        w = w * (w.sum(0).square() >= self.settings.min_count * w.square().sum(0))
        with torch.no_grad():
            features = torch.cat([self.router(shared, self.standardise(shared, x)).cpu() for x in chunks(client.x)])
        h = features[:, 0].double()
        product = torch.einsum("nc,nd,ne->cde", w, h, h)
        return Mean(1, mass=w.sum(0), sum=w.T @ h, product=product), client.private

    def log_density(self, shared: Tensors, features: Float[Tensor, "n 1 d"]) -> Float[Tensor, "n c"]:
        """log N(h(x); μ_c, Σ_c)"""
        gaussian = MultivariateNormal(shared["gauss.mean"], shared["gauss.covariance"], validate_args=False)
        density: Tensor = gaussian.log_prob(features)
        return density

    def routing_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"density": self.log_density(shared, self.router(shared, x))}

    def predicting_view(self, shared: Tensors, x: Tensor) -> Tensors:
        return {"predictor": self.predictor(shared, x)}

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        return Servable.embed(self, shared, x)

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"]:
        tau = shared["tau"]
        density = embedding["density"][:, None].expand(-1, self.task.clients, -1)
        return routing.log_client_scores(log_prior(self.task, tau), all_mixing(self.task, tau).log(), density)

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """Σ_c P_i(c | x) P_c(k | x), with P_i(c | x) ∝ π_ic N(h(x); μ_c, Σ_c)"""
        posterior = routing.log_component_posterior(private["mixing"].log(), embedding["density"])
        return routing.class_probabilities(posterior, self.log_likelihood(shared, embedding["predictor"]))

    def log_components(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m c"]:
        density = embedding["density"][:, None].expand(-1, self.task.clients, -1)
        return routing.log_component_posterior(all_mixing(self.task, shared["tau"]).log(), density)

    def router_part(self, shared: Tensors) -> Tensors:
        return self.router.take(shared) | {name: shared[name] for name in (*INPUT, *GAUSS, "tau")}

    def node_part(self, client: int, private: Tensors, shared: Tensors) -> Tensors:
        mine = {"mixing": private["mixing"]}
        return self.predictor.take(shared) | {name: shared[name] for name in (*INPUT, *HEAD)} | mine


def gaussians(moments: Tensors, previous: Tensors) -> Tensors:
    """Mean and covariance of every component; one without a whole row keeps what it had."""
    weight = moments["mass"][:, None]
    mean = moments["sum"] / weight.clamp_min(1e-12)
    covariance = moments["product"] / weight.clamp_min(1e-12)[..., None] - mean[:, :, None] * mean[:, None]
    size = covariance.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    covariance = covariance + RIDGE * size[:, None, None] * torch.eye(mean.shape[1], dtype=mean.dtype)
    alive = weight > 1
    return {
        "gauss.mean": torch.where(alive, mean.float(), previous["gauss.mean"]),
        "gauss.covariance": torch.where(alive[..., None], covariance.float(), previous["gauss.covariance"]),
    }
