"""The components of the mixture (eq. 1), eq. 2 and 3: what they say of a row, from features that all clients share.

Shapes: n rows, e encoders (1 for 1×, C for C×), d dimensions, C components (`c`), K classes (`k`), m clients.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.randomness import torch_generator
from fedspm.base.tensors import Tensors

HEAD = ("head.weight", "head.bias")
TILT = ("tilt.xi", "tilt.gamma")
Features = Float[Tensor, "n e d"]


def log_likelihood(
    weight: Float[Tensor, "c k d"], bias: Float[Tensor, "c k"], features: Features
) -> Float[Tensor, "n c k"]:
    """log P_ic(k | x) = α_ikc + β_ikcᵀ g_c(x) − logΣ_k   (eq. 2), for one client i"""
    components, classes, _ = weight.shape
    if features.shape[1] == 1:  # 1×: all components in one product
        scores = torch.addmm(bias.flatten(), features[:, 0], weight.flatten(0, 1).T)
        return torch.log_softmax(scores.view(-1, components, classes), dim=-1)
    return torch.log_softmax(torch.einsum("ncd,ckd->nck", features, weight) + bias, dim=-1)


def of_label(log_likelihood: Float[Tensor, "n c k"], y: Int[Tensor, " n"]) -> Float[Tensor, "n c"]:
    """log P_ic(y_ij | x_ij) out of log P_ic(k | x_ij)"""
    return log_likelihood.gather(2, y[:, None, None].expand(-1, log_likelihood.shape[1], 1))[:, :, 0]


def log_ratio(xi: Float[Tensor, "*m c d"], gamma: Float[Tensor, "*m c"], features: Features) -> Float[Tensor, "n *m c"]:
    """log dP_ic/dG(x) = γ_ic + ξ_icᵀ h_c(x)   (eq. 3), for all clients or for one"""
    if features.shape[1] == 1:
        return torch.addmm(gamma.flatten(), features[:, 0], xi.flatten(0, -2).T).view(-1, *gamma.shape)
    return torch.einsum("ncd,...cd->n...c", features, xi) + gamma


def initial_head(components: int, classes: int, dimension: int, generator: torch.Generator) -> Tensors:
    """α and β of one client, uniform in ±1/√d as torch.nn.Linear does."""
    bound = 1 / math.sqrt(dimension)
    return {
        "head.weight": torch.empty(components, classes, dimension).uniform_(-bound, bound, generator=generator),
        "head.bias": torch.empty(components, classes).uniform_(-bound, bound, generator=generator),
    }


def initial_shared_heads(components: int, classes: int, dimension: int, seed: int) -> Tensors:
    """Heads that all clients share, a stream for every component: the first is the same however many there are."""
    heads = [initial_head(1, classes, dimension, torch_generator(seed, "head", c)) for c in range(components)]
    return {name: torch.cat([head[name] for head in heads]) for name in HEAD}


def initial_tilt(components: int, dimension: int, generator: torch.Generator) -> Tensors:
    """ξ of one client, uniform in ±1/√d, and γ = 0."""
    bound = 1 / math.sqrt(dimension)
    return {
        "tilt.xi": torch.empty(components, dimension).uniform_(-bound, bound, generator=generator),
        "tilt.gamma": torch.zeros(components),
    }
