"""Density ratios against a shared baseline: where they start, the DRM block of the M-step, and the server's step."""

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.task import Task
from fedspm.federated.uploads import Update, Upload
from fedspm.mixture import em
from fedspm.mixture.e_step import EvidenceCache
from fedspm.mixture.model import TILT, initial_tilt, log_ratio
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batch

TILTS: dict[str, Upload] = {
    "tilt.xi": Update(own_rows=True),
    "tilt.gamma": Update(
        own_rows=True, opposed=True
    ),  # ∂Q̃₂ᵢ/∂γ: others' −Σ_j P_j ≤ 0, its own add up to n_i − Σ_j P_j ≥ 0
}


def initial_tilts(task: Task, components: int, dimension: int, seed: int) -> Tensors:
    """γ and ξ of all clients, a stream for every name: how clients are numbered changes nothing."""
    tilts = [initial_tilt(components, dimension, torch_generator(seed, name, "tilt")) for name in task.names]
    return {name: torch.stack([tilt[name] for tilt in tilts]) for name in TILT}


def drm_block(
    algorithm: Algorithm,
    router: Encoder,
    client: Client,
    shared: Tensors,
    responsibilities: Float[Tensor, "n c"],
    tau: Float[Tensor, "m c"],
    cache: EvidenceCache,
) -> Tensors:
    """γ, ξ, ν by ascent on Q̃₂ᵢ (Algorithm 1, line 12)"""

    def objective(moving: Tensors, batch: Batch) -> Tensor:
        features = router(moving, algorithm.standardise(shared, batch.x), training=True)
        ratio = log_ratio(moving["tilt.xi"], moving["tilt.gamma"], features)
        cache.record("ratio", batch.row, ratio[:, batch.client])
        log_tau = tau.to(ratio.device).log()
        return em.drm_loss(batch.extra["responsibilities"], ratio, log_tau, batch.client)

    mixing = all_mixing(algorithm.task, tau.to(client.x.device))
    step = em.step_scale(mixing, algorithm.settings.em.scaled_steps)
    scale = None if step is None else {"tilt.xi": step[..., None], "tilt.gamma": step}
    start = router.take(shared) | {name: shared[name] for name in TILT}
    return algorithm.local_solver(client, "drm", router, start, objective, scale, responsibilities=responsibilities)


def extrapolate(algorithm: Algorithm, shared: Tensors, update: Tensors, round: int) -> Tensors:
    """The server's step on γ and ξ (`em.server_step`): averaging dilutes what client i learns of its own tilt by ρ_i,
    and a step of more than 1, annealed to 1 over the first half of the schedule, makes up for it."""
    first = max(1.0, min(algorithm.settings.em.server_step, algorithm.task.clients / 2))
    step = 1 + (first - 1) * max(0.0, 1 - 2 * round / algorithm.schedule)
    if step == 1:
        return update
    return update | {name: torch.lerp(shared[name], update[name], step) for name in TILT}


def all_mixing(task: Task, tau: Float[Tensor, "m c"]) -> Float[Tensor, "m c"]:
    """π of all clients, as the server knows it."""
    return em.mixing_weights(tau, task.sizes.to(tau))


def log_prior(task: Task, tau: Float[Tensor, "m c"]) -> Float[Tensor, " m"]:
    """log ρ_i, on the device of τ."""
    return task.sample_fraction.to(tau.device).log()
