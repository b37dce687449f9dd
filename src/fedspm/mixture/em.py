"""The steps of EM: eq. 7, eq. 9, and the two objectives of the M-step into which eq. 8 falls."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.tensors import Tensors

MIXING_FLOOR = 0.05  # a component that is nearly empty takes steps at most 20 times as large as printed


def log_responsibilities(
    log_mixing: Float[Tensor, " c"], log_ratio: Float[Tensor, "n c"], log_likelihood: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """log w_ijc = log π_ic + (γ_ic + ξ_icᵀ h_c(x_ij)) + log P_ic(y_ij | x_ij) − logΣ_c   (eq. 7)"""
    return torch.log_softmax(log_mixing + log_ratio + log_likelihood, dim=-1)


def mixing_weights(tau: Float[Tensor, "*m c"], n: Float[Tensor, "*m 1"] | int) -> Float[Tensor, "*m c"]:
    """π_ic = n_i⁻¹ Σ_j w_ijc = τ_ic / n_i   (eq. 9)"""
    return tau / n


def supervised_loss(
    responsibilities: Float[Tensor, "b c"], log_likelihood: Float[Tensor, "b c"]
) -> Float[Tensor, " b"]:
    """−Σ_c w_ijc log P_ic(y_ij | x_ij) of every row; the mean over a client is −Q₁ᵢ / n_i (eq. 8)"""
    return -(responsibilities * log_likelihood).sum(1)


def drm_loss(
    responsibilities: Float[Tensor, "b c"],
    log_ratio: Float[Tensor, "b m c"],
    log_tau: Float[Tensor, "m c"],
    client: Int[Tensor, ""] | int,
) -> Float[Tensor, " b"]:
    """−Σ_c w_ijc log_ratio_ic(x_ij) + logΣ_i'c τ_i'c exp(log_ratio_i'c(x_ij)) of every row.

    Their mean over a client is −Q̃₂ᵢ / n_i: Q₂ of eq. 8 with λ = τ / n"""
    own = (responsibilities * log_ratio[:, client]).sum(1)
    everybody = torch.logsumexp((log_ratio + log_tau).flatten(1), dim=1)
    return everybody - own


def step_scale(mixing: Float[Tensor, "*m c"], scaled: bool) -> Float[Tensor, "*m c"] | None:
    """What the gradient of a component's head and tilt is multiplied by (`em.scaled_steps`): it has a π share of the
    rows, and divided by π, C equal components step like one."""
    return 1 / mixing.clamp_min(MIXING_FLOOR) if scaled else None


def head_scale(mixing: Float[Tensor, " c"], scaled: bool) -> Tensors | None:
    step = step_scale(mixing, scaled)
    return None if step is None else {"head.weight": step[:, None, None], "head.bias": step[:, None]}
