"""The log-ratios of a model whose γ are normalised exactly, where eq. 6 always has a solution: λ = τ/n.

γ are those with which eq. 4 holds (`mixture.normalisers`) for the τ of the posterior that they themselves lead to: EM
over γ alone. There ∂pℓ/∂γ = 0, so that the derivative of pℓ at normalised γ by ξ and ν is the partial one (the envelope
theorem), and with λ = τ/n it is that of Q̃₂: ∇F = ∇f = ∇f̃.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedspm.likelihood.profile import Array, log_posterior, total_responsibilities
from fedspm.mixture.normalisers import Occupancy, exact_normalisers, occupancy_of

ITERATIONS = 100  # of EM
SETTLED = 1e-10  # change of a τ, as a share of all rows


@dataclass(frozen=True)
class Normalised:
    log_ratio: Array  # (n, m, C)
    responsibilities: Array  # (n, C): the posterior under them
    defect: float  # the largest |Σ_j r_j exp(log_ratio_jic) − 1| of the log-ratios as they were given, at their own τ
    residual: float  # … and of these


def normalised(log_ratio: Array, client: Array, log_mixing: Array, log_likelihood: Array) -> Normalised:
    """Log-ratios, (n, m, C), with every γ at its normaliser; the other arguments are those of `profile_log_el`."""
    ratio = torch.from_numpy(log_ratio)
    m = log_ratio.shape[1]
    everybody = torch.ones(m, dtype=torch.bool)
    gamma = torch.zeros(log_ratio.shape[1:], dtype=torch.float64)
    first: list[float] = []

    def ask(gamma: Tensor, tau: Tensor) -> Occupancy:
        sums = occupancy_of(ratio + gamma + tau.log())
        first.append(float((sums["shares"] / tau - 1).abs().max()))
        return Occupancy(sums["shares"], sums["baseline"], sums["value"], sums.get("overlap"), everybody)

    w = np.exp(log_posterior(log_ratio, client, log_mixing, log_likelihood))
    tau = total_responsibilities(client, w, m)
    residual = np.inf
    for _ in range(ITERATIONS):
        gamma, residual = exact_normalisers(gamma, torch.from_numpy(tau), everybody, ask)
        w = np.exp(log_posterior(log_ratio + gamma.numpy(), client, log_mixing, log_likelihood))
        before, tau = tau, total_responsibilities(client, w, m)
        if np.abs(tau - before).max() <= SETTLED * len(w):
            break
    return Normalised(log_ratio + gamma.numpy(), w, first[0], residual)
