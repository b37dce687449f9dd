"""FedSPM: federated EM for a semiparametric mixture (the paper's Algorithm 1).

A round is two exchanges. In the first, clients compute responsibilities and send their column sums τ; in the second
they get everybody's τ, take local steps on the supervised and the DRM block, and the server averages.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.core.algorithm import Exchange, Task
from fedspm.core.local import Batch, Client
from fedspm.core.replies import Mean, Tensors
from fedspm.core.settings import Settings
from fedspm.mixture import em, routing
from fedspm.mixture.components import ComponentAlgorithm
from fedspm.mixture.model import initial_head, initial_tilt, log_likelihood, log_ratio
from fedspm.randomness import torch_generator

HEAD = ("head.weight", "head.bias")
TILT = ("tilt.xi", "tilt.gamma")


class FedSPM(ComponentAlgorithm):
    routes = True
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **ComponentAlgorithm.leaves,
        "maximise": frozenset({"predictor", "router", "tilt"}),
    }

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        copies = settings.components if settings.variant == "cx" else 1
        self.predictor = self.encoder("predictor", copies)
        self.router = self.encoder("router", copies)

    # -- Algorithm 1, the server's side ------------------------------------------------------------------------------

    def start(self, exchange: Exchange) -> Tensors:
        components, seed = self.settings.components, self.settings.seed
        shared = super().start(exchange) | self.predictor.initial() | self.router.initial()
        tilts = [  # a stream for every name: how clients are numbered changes nothing
            initial_tilt(components, self.router.dimension, torch_generator(seed, name, "tilt"))
            for name in self.task.names
        ]
        shared |= {name: torch.stack([tilt[name] for tilt in tilts]) for name in TILT}
        return shared | {"tau": self.first_tau(shared, exchange)}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        tau = exchange(self.expect, shared).stack("tau", self.task.names, shared["tau"])  # lines 3–7
        update = exchange(self.maximise, shared, tau=tau).result()  # lines 8–14
        step = self.server_step(exchange.round)
        for name in TILT if step != 1 else ():
            update[name] = torch.lerp(shared[name], update[name], step)
        return shared | update | {"tau": tau}

    def server_step(self, round: int) -> float:
        """Averaging dilutes what client i learns of its own tilt by ρ_i; a longer step makes up for it early on."""
        first = max(1.0, min(self.settings.em.server_step, self.task.clients / 2))
        return 1 + (first - 1) * max(0.0, 1 - 2 * round / self.settings.schedule)

    # -- the client's side -------------------------------------------------------------------------------------------

    def enrol(self, client: Client) -> Tensors:
        components = self.settings.components
        head = initial_head(components, self.task.classes, self.predictor.dimension, client.generator("head"))
        return head | {"mixing": torch.full((components,), 1 / components)}

    def posterior(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        """w by eq. 7 (lines 4–5; `expect` runs it over all rows and sends τ)"""
        private, x = client.private, self.standardise(shared, x)
        likelihood = log_likelihood(private["head.weight"], private["head.bias"], self.predictor(shared, x))
        ratio = log_ratio(shared["tilt.xi"][client.index], shared["tilt.gamma"][client.index], self.router(shared, x))
        return em.log_responsibilities(private["mixing"].log(), ratio, em.of_label(likelihood, y)).exp()

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]:
        """M-step (lines 9–12): π in closed form, the supervised block and the DRM block by local SGD."""
        mixing = em.mixing_weights(tau[client.index], client.n)
        private, shared_predictor = self.supervised_block(client, shared, mixing)
        shared_router = self.drm_block(client, shared, tau)
        return Mean(client.n, **shared_predictor, **shared_router), private | {"mixing": mixing}

    def supervised_block(self, client: Client, shared: Tensors, mixing: Tensor) -> tuple[Tensors, Tensors]:
        """α_i, β_i, θ by ascent on Q₁ᵢ"""
        responsibilities = client.private["responsibilities"]

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.predictor(moving, self.standardise(shared, batch.x), training=True)
            likelihood = log_likelihood(moving["head.weight"], moving["head.bias"], features)
            return em.supervised_loss(responsibilities[batch.row], em.of_label(likelihood, batch.y))

        step = self.row_scale(mixing)
        scale = None if step is None else {"head.weight": step[:, None, None], "head.bias": step[:, None]}
        start = self.predictor.take(shared) | {name: client.private[name] for name in HEAD}
        moved = self.local_solver(client, "supervised", self.predictor, start, objective, scale)
        return client.private | {name: moved.pop(name) for name in HEAD}, moved

    def drm_block(self, client: Client, shared: Tensors, tau: Tensor) -> Tensors:
        """γ, ξ, ν by ascent on Q̃₂ᵢ"""
        responsibilities = client.private["responsibilities"]
        log_tau = tau.log()

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.router(moving, self.standardise(shared, batch.x), training=True)
            ratio = log_ratio(moving["tilt.xi"], moving["tilt.gamma"], features)
            return em.drm_loss(responsibilities[batch.row], ratio, log_tau, client.index)

        step = self.row_scale(em.mixing_weights(tau, tau.new_tensor(self.task.counts)[:, None]))
        scale = None if step is None else {"tilt.xi": step[..., None], "tilt.gamma": step}
        start = self.router.take(shared) | {name: shared[name] for name in TILT}
        return self.local_solver(client, "drm", self.router, start, objective, scale)

    # -- inference ---------------------------------------------------------------------------------------------------

    def embed(self, shared: Tensors, x: Tensor) -> Tensors:
        x = self.standardise(shared, x)
        return {"predictor": self.predictor(shared, x), "router": self.router(shared, x)}

    def log_scores(self, shared: Tensors, embedding: Tensors) -> Float[Tensor, "n m"]:
        """eq. 10, with ρ_i π_ic = τ_ic / n: the server needs nothing that it does not have"""
        tau = shared["tau"]
        prior = self.task.sample_fraction.to(tau.device).log()
        mixing = em.mixing_weights(tau, tau.new_tensor(self.task.counts)[:, None])
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], embedding["router"])
        return routing.log_client_scores(prior, mixing.log(), ratio)

    def local_probabilities(
        self, client: int, private: Tensors, shared: Tensors, embedding: Tensors
    ) -> Float[Tensor, "n k"]:
        """eq. 11"""
        ratio = log_ratio(shared["tilt.xi"][client], shared["tilt.gamma"][client], embedding["router"])
        posterior = routing.log_component_posterior(private["mixing"].log(), ratio)
        return routing.class_probabilities(
            posterior, log_likelihood(private["head.weight"], private["head.bias"], embedding["predictor"])
        )
