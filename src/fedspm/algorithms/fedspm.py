"""FedSPM: federated EM for a semiparametric mixture (the paper's Algorithm 1).

A round is two exchanges. In the first, clients compute responsibilities and send their column sums τ; in the second
they get everybody's τ, take local steps on the supervised and the DRM block, and the server averages.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.core.algorithm import Algorithm, Exchange, Task
from fedspm.core.local import Batch, Client, chunks, minimise
from fedspm.core.replies import Mean, Rows, Tensors
from fedspm.core.settings import Settings
from fedspm.errors import FedSPMError
from fedspm.mixture import em, initialise, routing
from fedspm.mixture.model import initial_head, initial_tilt, log_likelihood, log_ratio
from fedspm.randomness import torch_generator

MIXING_FLOOR = 0.05  # a component that is nearly empty takes steps at most 20 times as large as printed
HEAD = ("head.weight", "head.bias")
TILT = ("tilt.xi", "tilt.gamma")


class FedSPM(Algorithm):
    routes = True
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **Algorithm.leaves,
        "moments": frozenset({"count", "products"}),
        "cluster": frozenset({"count", "sum", "square"}),
        "settle": frozenset({"tau"}),
        "expect": frozenset({"tau"}),
        "maximise": frozenset({"predictor", "router", "tilt"}),
    }

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        for name, n in zip(task.names, task.counts, strict=True):
            if n < settings.components:
                raise FedSPMError(
                    f"client {name!r} has {n} training rows, fewer than the {settings.components} components; "
                    "use fewer components or leave the client out"
                )
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
        shared["tau"] = torch.tensor(self.task.counts)[:, None].expand(-1, components) / components
        if self.settings.em.start == "kmeans":
            shared["tau"] = self.find_components(shared, exchange)
        return shared

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

    def expect(self, client: Client, shared: Tensors) -> tuple[Rows, Tensors]:
        """E-step over all local rows (lines 4–5): w by eq. 7, and τ_ic = Σ_j w_ijc for the server."""
        start, hold = self.settings.em.start, min(self.settings.em.hold, self.settings.schedule // 2)
        if start == "kmeans" and client.round < hold:
            responsibilities = client.private["responsibilities"]
        else:
            with torch.no_grad():
                rows = zip(chunks(client.x), chunks(client.y), strict=True)
                responsibilities = torch.cat([self.posterior(client, shared, x, y) for x, y in rows])
        return self.report_tau(client, responsibilities), client.private | {"responsibilities": responsibilities}

    def report_tau(self, client: Client, responsibilities: Float[Tensor, "n c"]) -> Rows:
        """τ_ic = Σ_j w_ijc, the only thing that the server learns of the responsibilities"""
        return Rows.of(client.name, tau=responsibilities.cpu().double().sum(0).float())

    def posterior(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
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

        block = self.settings.predictor
        step = self.row_scale(mixing)
        moved = minimise(
            self.predictor.take(shared) | {name: client.private[name] for name in HEAD},
            objective,
            client.batches("supervised", block.batch_size, block.steps),
            learning_rate=self.annealed(block.learning_rate, client.round),
            momentum=block.momentum,
            fixed=self.predictor.buffers,
            scale={"head.weight": step[:, None, None], "head.bias": step[:, None]} if step is not None else None,
        )
        return client.private | {name: moved.pop(name) for name in HEAD}, moved

    def drm_block(self, client: Client, shared: Tensors, tau: Tensor) -> Tensors:
        """γ, ξ, ν by ascent on Q̃₂ᵢ"""
        responsibilities = client.private["responsibilities"]
        log_tau = tau.log()

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.router(moving, self.standardise(shared, batch.x), training=True)
            ratio = log_ratio(moving["tilt.xi"], moving["tilt.gamma"], features)
            return em.drm_loss(responsibilities[batch.row], ratio, log_tau, client.index)

        block = self.settings.router
        step = self.row_scale(em.mixing_weights(tau, tau.new_tensor(self.task.counts)[:, None]))
        return minimise(
            self.router.take(shared) | {name: shared[name] for name in TILT},
            objective,
            client.batches("drm", block.batch_size, block.steps),
            learning_rate=self.annealed(block.learning_rate, client.round),
            momentum=block.momentum,
            fixed=self.router.buffers,
            scale={"tilt.xi": step[..., None], "tilt.gamma": step} if step is not None else None,
        )

    def row_scale(self, mixing: Float[Tensor, "*m c"]) -> Float[Tensor, "*m c"] | None:
        """A component's head and tilt get a π share of the gradient; divided by π, C equal components step like one."""
        return 1 / mixing.clamp_min(MIXING_FLOOR) if self.settings.em.scaled_steps else None

    # -- the start of EM: federated k-means --------------------------------------------------------------------------

    def find_components(self, shared: Tensors, exchange: Exchange) -> Float[Tensor, "m c"]:
        """First responsibilities, which stay at the clients, and their τ."""
        moments = exchange(self.moments, shared).totals()
        scatter, count = moments["products"], moments["count"].clamp_min(1)
        best, highest = torch.zeros(1, len(scatter), dtype=scatter.dtype), -math.inf
        for clusters in range(2, self.settings.components + 1):
            centres = initialise.first_centres(scatter / count, clusters)
            for _ in range(initialise.ITERATIONS):
                sums = exchange(self.cluster, shared, centres=centres).totals()
                centres = initialise.moved(centres, sums["count"], sums["sum"])
            separation = initialise.separation(sums["count"], sums["sum"], sums["square"], scatter.trace())
            if separation > highest:
                best, highest = centres, separation
        return exchange(self.settle, shared, centres=best).stack("tau", self.task.names)

    def moments(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Count and products of the coarse features around the client's own mean."""
        features = torch.cat([initialise.coarse(self.standardise(shared, x)).cpu() for x in chunks(client.x)])
        features -= features.mean(0)
        shown = (features if client.n >= self.settings.min_count else features[:0]).double()
        count = torch.tensor(float(len(shown)), dtype=torch.float64)
        return Mean(1, count=count, products=shown.T @ shown), client.private | {"coarse": features}

    def cluster(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[Mean, Tensors]:
        """Counts, sums and sum of squares of the clusters around the client's own offset."""
        features = client.private["coarse"]
        label, offset = initialise.place(features, centres.cpu())
        sums = initialise.cluster_sums(features - offset, label, len(centres), self.settings.min_count)
        return Mean(1, **dict(zip(("count", "sum", "square"), sums, strict=True))), client.private

    def settle(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[Rows, Tensors]:
        """First responsibilities: nearly all of a row to its cluster."""
        private = dict(client.private)
        label, _ = initialise.place(private.pop("coarse"), centres.cpu())
        responsibilities = initialise.softened(label, self.settings.components).to(client.x.device)
        return self.report_tau(client, responsibilities), private | {"responsibilities": responsibilities}

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
