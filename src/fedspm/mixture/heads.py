"""Heads of given features, exactly: what a client may do on its own before it is evaluated (`predictor.refit_heads`).

With θ and w fixed, Q₁ᵢ is concave in the client's α and β: a weighted multinomial logistic regression for every
component. SGD has taken few steps towards its optimum; L-BFGS goes there, held back by a penalty on how far it is from
the head that was trained,

    −Q₁ᵢ(α, β) / n_i + ½ penalty · ‖(α, β) − trained‖²,

so that a head does not overfit few rows, and that of an empty component stays where it is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.mixture.em import supervised_loss
from fedspm.mixture.model import HEAD, Features, log_likelihood, of_label

TRAINED = "trained."  # in front of the names under which the next round finds its heads
ITERATIONS = 50


def with_heads_refitted(
    private: Tensors,
    features: Features,
    y: Int[Tensor, " n"],
    responsibilities: Float[Tensor, "n c"],
    penalty: float,
) -> Tensors:
    """The private state with heads that are optimal for these features, and with those of training beside them."""
    private = with_trained_heads(private)
    head = {name: private[name] for name in HEAD}
    trained = {TRAINED + name: value for name, value in head.items()}
    return private | refitted_heads(head, features, y, responsibilities, penalty) | trained


def with_trained_heads(private: Tensors) -> Tensors:
    """The private state that training goes on from."""
    if TRAINED + HEAD[0] not in private:
        return private
    trained = {name: private[TRAINED + name] for name in HEAD}
    return {name: value for name, value in private.items() if not name.startswith(TRAINED)} | trained


def refitted_heads(
    head: Tensors, features: Features, y: Int[Tensor, " n"], responsibilities: Float[Tensor, "n c"], penalty: float
) -> Tensors:
    """α and β where the penalised loss is smallest"""
    moving = {name: value.detach().double().requires_grad_() for name, value in head.items()}
    start = {name: value.detach().clone() for name, value in moving.items()}
    features, responsibilities = features.double(), responsibilities.double()
    search = torch.optim.LBFGS(
        list(moving.values()),
        max_iter=ITERATIONS,
        history_size=10,
        tolerance_grad=1e-6,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        search.zero_grad()
        likelihood = of_label(log_likelihood(moving["head.weight"], moving["head.bias"], features), y)
        far = sum((moving[name] - start[name]).square().sum() for name in moving)
        total: Tensor = supervised_loss(responsibilities, likelihood).mean() + penalty / 2 * far
        total.backward()
        return total

    search.step(loss)
    return {name: value.detach().to(head[name].dtype) for name, value in moving.items()}
