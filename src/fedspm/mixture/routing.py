"""Inference: whom a query resembles (eq. 10), and what that client answers (eq. 11)."""

import torch
from jaxtyping import Float
from torch import Tensor


def log_client_scores(
    log_prior: Float[Tensor, " m"], log_mixing: Float[Tensor, "m c"], log_ratio: Float[Tensor, "n m c"]
) -> Float[Tensor, "n m"]:
    """log ρ_i + logΣ_c π_ic exp(γ_ic + ξ_icᵀ h_c(x))   (eq. 10): its argmax over i is the client i*"""
    return log_prior + torch.logsumexp(log_mixing + log_ratio, dim=-1)


def log_component_posterior(
    log_mixing: Float[Tensor, "*m c"], log_ratio: Float[Tensor, "n *m c"]
) -> Float[Tensor, "n *m c"]:
    """log P_i(c | x) = log π_ic + γ_ic + ξ_icᵀ h_c(x) − logΣ_c, for all clients or for one"""
    return torch.log_softmax(log_mixing + log_ratio, dim=-1)


def class_probabilities(
    log_component_posterior: Float[Tensor, "n c"], log_likelihood: Float[Tensor, "n c k"]
) -> Float[Tensor, "n k"]:
    """P_i(k | x) = Σ_c P_i(c | x) P_ic(k | x)   (eq. 11): its argmax over k is the prediction"""
    return (log_component_posterior[:, :, None] + log_likelihood).exp().sum(1)
