"""Density ratios against a shared baseline: the DRM block, and the server's step on it."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.mixture import em
from fedspm.mixture.e_step import ComponentAlgorithm, note
from fedspm.mixture.model import TILT, initial_tilt, log_ratio
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batch


class DensityRatios(ComponentAlgorithm):
    router: Encoder

    def first_tilts(self, components: int) -> Tensors:
        """γ and ξ of all clients, a stream for every name: how clients are numbered changes nothing."""
        seed, dimension = self.settings.seed, self.router.dimension
        tilts = [initial_tilt(components, dimension, torch_generator(seed, name, "tilt")) for name in self.task.names]
        return {name: torch.stack([tilt[name] for tilt in tilts]) for name in TILT}

    def drm_block(
        self,
        client: Client,
        shared: Tensors,
        responsibilities: Float[Tensor, "n c"],
        tau: Float[Tensor, "m c"],
        evidence: Tensors | None,
    ) -> Tensors:
        """γ, ξ, ν by ascent on Q̃₂ᵢ"""

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            features = self.router(moving, self.standardise(shared, batch.x), training=True)
            ratio = log_ratio(moving["tilt.xi"], moving["tilt.gamma"], features)
            note(evidence, "ratio", batch.row, ratio[:, batch.client])
            log_tau = tau.to(ratio.device).log()
            return em.drm_loss(batch.extra["responsibilities"], ratio, log_tau, batch.client)

        step = self.row_scale(self.mixing(tau.to(client.x.device)))
        scale = None if step is None else {"tilt.xi": step[..., None], "tilt.gamma": step}
        start = self.router.take(shared) | {name: shared[name] for name in TILT}
        return self.local_solver(client, "drm", self.router, start, objective, scale, responsibilities=responsibilities)

    def extrapolate(self, shared: Tensors, update: Tensors, round: int) -> Tensors:
        """The server's step on γ and ξ: averaging dilutes what client i learns of its own tilt by ρ_i, and a step of
        more than 1, annealed to 1 over the first half of the schedule, makes up for it."""
        first = max(1.0, min(self.settings.em.server_step, self.task.clients / 2))
        step = 1 + (first - 1) * max(0.0, 1 - 2 * round / self.settings.schedule)
        if step == 1:
            return update
        return update | {name: torch.lerp(shared[name], update[name], step) for name in TILT}

    def mixing(self, tau: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
        """π of all clients, as the server knows it"""
        return em.mixing_weights(tau, self.task.sizes.to(tau))

    def log_prior(self, tau: Float[Tensor, "m c"]) -> Float[Tensor, " m"]:
        return self.task.sample_fraction.to(tau.device).log()
