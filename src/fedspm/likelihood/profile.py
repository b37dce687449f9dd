"""The profile log-EL of the mixture, the exact Q₂ and its surrogate Q̃₂, as functions of the log-ratios of all rows.

All three depend on φ = (γ, ξ, ν) through log_ratio_jic = γ_ic + ξ_icᵀ h_c(x_j) only, so each comes with its `pull`: the
derivative with respect to log_ratio, from which the chain rule gives every gradient (diagnostics.py). By the envelope
theorem the multipliers count as constants in it. `client` says to which client each of the n pooled rows belongs.

A component to which no row belongs (τ_ic ≤ `least`, by default 0) has no distribution: nothing ties its γ and ξ to the
data, and its constraint in eq. 4, which they would have to satisfy all the same, is left out; its λ is zero.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from fedspm.base.errors import FedSPMError
from fedspm.likelihood.multipliers import Multipliers, solve_multipliers
from fedspm.likelihood.numbers import as_numbers

Array = np.ndarray


@dataclass(frozen=True)
class Objective:
    """A value, and its derivative with respect to the log-ratios, (n, m, C)."""

    value: float
    pull: Array


@dataclass(frozen=True)
class ExactObjective(Objective):
    """An objective that contains the baseline weights, and their multipliers λ_ic in the order of log_ratio."""

    solution: Multipliers


def log_posterior(log_ratio: ArrayLike, client: ArrayLike, log_mixing: ArrayLike, log_likelihood: ArrayLike) -> Array:
    """log w_ijc of eq. 7 for every pooled row under its own client, (n, C)."""
    log_ratio, client, log_likelihood = _given(log_ratio, client, log_likelihood, "log_likelihood")
    joint = _log_joint(log_ratio, client, log_mixing, log_likelihood)
    return np.asarray(joint - logsumexp(joint, axis=1, keepdims=True))


def profile_log_el(
    log_ratio: ArrayLike, client: ArrayLike, log_mixing: ArrayLike, log_likelihood: ArrayLike, least: float = 0.0
) -> ExactObjective:
    """pℓ = Σ_j log r_j + Σ_j log Σ_c π_ic exp(log_ratio_jic) P_ic(y_j | x_j), with i the client of row j.

    log_ratio is (n, m, C), log_mixing (m, C), log_likelihood (n, C): log P_ic(y_j | x_j) under the row's own client.
    """
    log_ratio, client, log_likelihood = _given(log_ratio, client, log_likelihood, "log_likelihood")
    joint = _log_joint(log_ratio, client, log_mixing, log_likelihood)
    total = logsumexp(joint, axis=1, keepdims=True)
    posterior = np.exp(joint - total)
    solution = _baseline(log_ratio, client, posterior, least)
    value = solution.sum_log_weights + float(total.sum())
    pull = _own(posterior, client, log_ratio) - _of_baseline(log_ratio, solution)
    return ExactObjective(value, pull, solution)


def exact_q2(
    log_ratio: ArrayLike, client: ArrayLike, responsibilities: ArrayLike, least: float = 0.0
) -> ExactObjective:
    """Q₂ = Σ_jc w_jc log_ratio_jic − Σ_j log(1 + Σ_i'c λ_i'c (exp(log_ratio_ji'c) − 1)), λ from eq. 6"""
    log_ratio, client, responsibilities = _of_rows(log_ratio, client, responsibilities)
    solution = _baseline(log_ratio, client, responsibilities, least)
    n = len(log_ratio)
    value = _tilted(log_ratio, client, responsibilities) + solution.sum_log_weights + n * np.log(n)
    pull = _own(responsibilities, client, log_ratio) - _of_baseline(log_ratio, solution)
    return ExactObjective(value, pull, solution)


def surrogate_q2(log_ratio: ArrayLike, client: ArrayLike, responsibilities: ArrayLike) -> Objective:
    """Q̃₂ = Σ_jc w_jc log_ratio_jic − Σ_j log Σ_i'c τ_i'c exp(log_ratio_ji'c)"""
    log_ratio, client, responsibilities = _of_rows(log_ratio, client, responsibilities)
    scores = log_ratio + _log_tau(log_ratio, client, responsibilities)
    everybody = logsumexp(scores, axis=(1, 2), keepdims=True)
    value = _tilted(log_ratio, client, responsibilities) - float(everybody.sum())
    return Objective(value, _own(responsibilities, client, log_ratio) - np.exp(scores - everybody))


def gauge_shift(log_ratio: ArrayLike, client: ArrayLike, responsibilities: ArrayLike) -> float:
    """a = log Σ_j 1 / Σ_i'c τ_i'c exp(log_ratio_ji'c), to be added to every γ.

    Q̃₂, routing and responsibilities do not change with it; with it the weights that λ = τ/n gives sum to one, which is
    where eq. 6 has a solution at the optimum. Without it there often is none.
    """
    log_ratio, client, responsibilities = _of_rows(log_ratio, client, responsibilities)
    scores = log_ratio + _log_tau(log_ratio, client, responsibilities)
    return float(logsumexp(-logsumexp(scores, axis=(1, 2))))


def in_fixed_gauge(
    objective: "ExactObjective", log_ratio: Array, client: Array, responsibilities: Array
) -> "ExactObjective":
    """An objective at log_ratio + gauge_shift, with the derivative of the shift, which depends on log_ratio, in it."""
    scores = log_ratio + _log_tau(log_ratio, client, responsibilities)
    everybody = logsumexp(scores, axis=(1, 2), keepdims=True)
    weight = np.exp(-everybody - logsumexp(-everybody))  # r_j / Σ r at λ = τ/n
    return replace(objective, pull=objective.pull - objective.pull.sum() * weight * np.exp(scores - everybody))


def total_responsibilities(client: Array, responsibilities: Array, clients: int) -> Array:
    """τ_ic = Σ_j w_ijc, (m, C)"""
    tau = np.zeros((clients, responsibilities.shape[1]))
    np.add.at(tau, client, responsibilities)
    return tau


def accumulation_factors(momentum: float, steps: int) -> tuple[float, float]:
    """a_E = Σ_e μ_{E,e} and s_E = Σ_e μ_{E,e}², with μ_{E,e} = (1 − μ^(E−e)) / (1 − μ)"""
    if not 0 <= momentum < 1:
        raise FedSPMError(f"momentum = {momentum} must be at least 0 and below 1")
    if steps < 0:
        raise FedSPMError(f"steps = {steps} must be at least 0")
    factors = np.cumsum(momentum ** np.arange(steps))  # 1, 1 + μ, … is μ_{E,e} for e = E − 1, …, 0
    return float(factors.sum()), float((factors**2).sum())


def _given(log_ratio: Any, client: Any, of_row: Any, what: str) -> tuple[Array, Array, Array]:
    """What somebody hands over, as arrays whose shapes fit."""
    ratios, numbers = as_numbers("log_ratio", log_ratio), as_numbers("client", client)
    figures = as_numbers(what, of_row)
    n, m, components = ratios.shape if ratios.ndim == 3 else (0, 0, 0)
    if n == 0 or numbers.shape != (n,) or figures.shape != (n, components):
        raise FedSPMError(
            f"log_ratio, client and {what} have shapes {ratios.shape}, {numbers.shape} and {figures.shape}; "
            "expected (n, m, C), (n,) and (n, C)"
        )
    if not np.isin(numbers, np.arange(m)).all():
        raise FedSPMError(f"client has numbers from {numbers.min():g} to {numbers.max():g}; expected 0 to {m - 1}")
    return ratios, numbers.astype(int), figures


def _of_rows(log_ratio: Any, client: Any, responsibilities: Any) -> tuple[Array, Array, Array]:
    given = _given(log_ratio, client, responsibilities, "responsibilities")
    if not (given[2] >= 0).all() or not 0 < given[2].sum() < np.inf:
        raise FedSPMError("responsibilities must be finite, none of them negative and some positive")
    return given


def _baseline(log_ratio: Array, client: Array, responsibilities: Array, least: float) -> Multipliers:
    """The solution of eq. 6 for all components that have rows, with λ = 0 for the others."""
    present = (total_responsibilities(client, responsibilities, log_ratio.shape[1]) > least).ravel()
    if not present.any():
        raise FedSPMError(f"no component has more than {least:g} rows (least), so there is nothing to solve eq. 6 for")
    solution = solve_multipliers(log_ratio=log_ratio.reshape(len(log_ratio), -1)[:, present])
    multipliers = np.zeros(len(present))
    multipliers[present] = solution.multipliers
    return replace(solution, multipliers=multipliers)


def _of_baseline(log_ratio: Array, solution: Multipliers) -> Array:
    """λ_i'c exp(log_ratio_ji'c) / (1 + λᵀg_j), that is n r_j λ_i'c exp(log_ratio_ji'c), without overflow."""
    multipliers = solution.multipliers.reshape(log_ratio.shape[1:])
    shown = np.where(multipliers == 0, -np.inf, log_ratio)  # that of an absent component may be anything
    return np.asarray(len(log_ratio) * multipliers * np.exp(shown + solution.log_weights[:, None, None]))


def _own(values: Array, client: Array, like: Array) -> Array:
    """(n, C) figures of each row's own client, zero for the others, (n, m, C)."""
    placed = np.zeros(like.shape)
    placed[np.arange(len(client)), client] = values
    return placed


def _tilted(log_ratio: Array, client: Array, responsibilities: Array) -> float:
    own = log_ratio[np.arange(len(client)), client]
    own = np.where(responsibilities == 0, 0.0, own)  # that of an absent component may be −∞
    return float((responsibilities * own).sum())


def _log_tau(log_ratio: Array, client: Array, responsibilities: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(total_responsibilities(client, responsibilities, log_ratio.shape[1])))


def _log_joint(log_ratio: Array, client: Array, log_mixing: ArrayLike, log_likelihood: Array) -> Array:
    mixing = as_numbers("log_mixing", log_mixing)
    if mixing.shape != log_ratio.shape[1:]:
        raise FedSPMError(f"log_mixing has shape {mixing.shape}; expected (m, C) = {log_ratio.shape[1:]}")
    joint = mixing[client] + log_ratio[np.arange(len(client)), client] + log_likelihood
    if (impossible := joint.max(1) == -np.inf).any():
        raise FedSPMError(f"row {int(impossible.argmax())} has density zero under all components: its log is −∞")
    return np.asarray(joint)
