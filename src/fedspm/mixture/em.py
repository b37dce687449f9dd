"""The steps of EM: eq. 7, eq. 9, and the two objectives of the M-step into which eq. 8 falls."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def log_responsibilities(
    log_mixing: Float[Tensor, " c"], log_ratio: Float[Tensor, "n c"], log_likelihood: Float[Tensor, "n c"]
) -> Float[Tensor, "n c"]:
    """log w_ijc = log π_ic + (γ_ic + ξ_icᵀ h_c(x_ij)) + log P_ic(y_ij | x_ij) − logΣ_c   (eq. 7)"""
    return torch.log_softmax(log_mixing + log_ratio + log_likelihood, dim=-1)


def of_label(log_likelihood: Float[Tensor, "n c k"], y: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
    """log P_ic(y_ij | x_ij) out of log P_ic(k | x_ij)"""
    return log_likelihood.gather(2, y[:, None, None].expand(-1, log_likelihood.shape[1], 1))[:, :, 0]


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
