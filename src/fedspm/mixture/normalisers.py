"""The normalisers γ of given tilts, exactly.

With ξ, ν and w fixed, Q̃₂ is concave in the m·C numbers γ, and its derivative by γ_ic is τ_ic − Σ_j P_j(i, c), where

    P_j(i, c) = τ_ic exp(log_ratio_ic(x_j)) / Σ_i'c' τ_i'c' exp(log_ratio_i'c'(x_j)).

Where it vanishes, eq. 4 holds with λ = τ/n: the weights r_j = 1 / Σ τ exp(log_ratio) of eq. 5 give every component the
mass Σ_j r_j exp(log_ratio_ic(x_j)) = Σ_j P_j(i, c) / τ_ic = 1. A constant added to every γ, on which P does not depend,
makes Σ_j r_j = 1.

A client sends Σ_j P_j of its own rows, m·C shares of rows, and for up to `CURVED` components also Σ_j P_j P_jᵀ, the
curvature: then Newton's method takes some seven exchanges. With more components the products would be too large to
send. Iterative scaling, γ_ic ← γ_ic + log(τ_ic / Σ_j P_j(i, c)), does without them, and is slow where components
hardly overlap; so the server extrapolates from its last steps (Anderson 1965).
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.federated.uploads import Count, Products, Sum, Upload
from fedspm.mixture.model import Features, log_ratio

TOLERANCE = 1e-7  # of |Σ_j P_j / τ − 1|: γ is kept in single precision, which has not many more digits
EXCHANGES = 40  # at most
TRAINED = "trained.gamma"  # what the next round goes on from; it never leaves the server
OCCUPANCY: dict[str, Upload] = {"shares": Count(), "baseline": Sum(), "value": Sum(), "overlap": Products()}
REMEMBERED = 12  # steps that the next one is extrapolated from
CURVED = 96  # components of all clients, up to which the curvature is sent
LONGEST = 8.0  # step of a γ
SMALLEST = 1e-6  # rows: a component with fewer counts as having these, so that it has a normaliser as well
WORSE = 2.0  # times the best residual, from which extrapolation begins anew


@runtime_checkable
class Normalising(Protocol):
    """A method whose γ can be normalised: FedSPM, FedDRM."""

    settings: Settings
    task: Task

    def embed_rows(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]: ...

    def occupy(self, client: Client, shared: Tensors, gamma: Tensor, tau: Tensor) -> tuple[Mean, Tensors]: ...


def normalises(algorithm: Normalising) -> bool:
    """If `em.normalisers` is `exact` and `privacy.noise` is 0."""
    settings = algorithm.settings
    return settings.em.normalisers == "exact" and not settings.privacy.noise


def normalised(method: Normalising, shared: Tensors, exchange: Exchange) -> Tensors:
    """What is shared with γ normalised exactly, and with what training has for γ beside it."""
    shared = as_trained(shared)
    enough = torch.tensor(method.task.counts) >= method.settings.min_count
    exchange(method.embed_rows, shared)

    def ask(gamma: Tensor, tau: Tensor) -> Occupancy:
        told = exchange(method.occupy, {"tilt.xi": shared["tilt.xi"]}, gamma=gamma, tau=tau)
        answered = torch.tensor([name in told.answered for name in method.task.names])
        sums = told.totals()
        return Occupancy(sums["shares"], sums["baseline"], sums["value"], sums.get("overlap"), enough & answered)

    found = exact_normalisers(shared["tilt.gamma"], shared["tau"], enough, ask)
    return shared | {"tilt.gamma": found.gamma.float(), TRAINED: shared["tilt.gamma"]}


def as_trained(shared: Tensors) -> Tensors:
    """The state that training goes on from: γ as its steps left them."""
    if TRAINED not in shared:
        return shared
    return {name: value for name, value in shared.items() if name != TRAINED} | {"tilt.gamma": shared[TRAINED]}


class Occupancy(NamedTuple):
    """What the clients' rows say of the normalisers."""

    shares: Float[Tensor, "m c"]  # Σ_j P_j(i, c)
    baseline: Float[Tensor, ""]  # Σ_j r_j
    value: Float[Tensor, ""]  # Σ_j log Σ τ exp(log_ratio(x_j)): Q̃₂ is Σ τ γ less this, but for what has no γ
    overlap: Float[Tensor, "q q"] | None  # Σ_j P_j P_jᵀ, q = m·C; None where it is too large to send
    here: Bool[Tensor, " m"]  # the clients whose rows are in the sums


Ask = Callable[[Tensor, Tensor], Occupancy]  # γ and τ → the occupancy over all clients' rows


class Normalised(NamedTuple):
    gamma: Float[Tensor, "m c"]
    defect: float  # the largest |Σ_j r_j exp(log_ratio_ic(x_j)) − 1| that is left


def occupancy(
    xi: Float[Tensor, "m c d"], gamma: Float[Tensor, "m c"], tau: Float[Tensor, "m c"], features: Features
) -> Tensors:
    """The sums of `Occupancy` over some rows, in double precision"""
    return occupancy_of(log_ratio(xi.double(), gamma.double(), features.double()) + tau.double().log())


def occupancy_of(scores: Float[Tensor, "n m c"]) -> Tensors:
    """The same from log τ_ic + log_ratio_ic(x_j)"""
    total = torch.logsumexp(scores.flatten(1), dim=1)
    shares = (scores - total[:, None, None]).exp()
    sums = {"shares": shares.sum(0), "baseline": (-total).exp().sum(), "value": total.sum()}
    if scores.shape[1] * scores.shape[2] <= CURVED:
        sums["overlap"] = shares.flatten(1).T @ shares.flatten(1)
    return sums


def exact_normalisers(
    gamma: Float[Tensor, "m c"], tau: Float[Tensor, "m c"], here: Bool[Tensor, " m"], ask: Ask
) -> Normalised:
    """γ with which eq. 4 holds over the rows of the clients that are `here` and answer.

    The others are in no sum: nothing is known of the mass of their components where their own rows are. Their γ move
    along with the mean of those that are normalised.
    """
    first, tau = gamma.double(), tau.double().clamp_min(SMALLEST)
    gamma, search = first, Search(tau)
    best, defect, baseline = gamma, float("inf"), torch.ones(())
    for _ in range(EXCHANGES):
        found = ask(gamma, tau * here[:, None])
        if bool((here & ~found.here).any()):  # somebody has left: its rows are no longer in the sums
            here, search, defect = here & found.here, Search(tau), float("inf")
            continue
        share = torch.where(here[:, None], found.shares / tau, 1.0)
        if (off := float((share - 1).abs().max())) < defect:
            best, defect, baseline = gamma, off, found.baseline
        if off < TOLERANCE:
            break
        gamma = search.next(gamma, share, here, found)
    weight = tau * here[:, None]
    if not here.any():
        return Normalised(first, defect)
    drift = (weight * (best - first)).sum() / weight.sum()
    best = torch.where(here[:, None], best, first + drift)
    return Normalised(best + baseline.log(), defect)


class Search:
    """From γ and what the rows say of it to the next γ."""

    def __init__(self, tau: Float[Tensor, "m c"]):
        self._tau = tau
        self._before: list[tuple[Tensor, Tensor]] = []  # γ and step of iterative scaling
        self._least = float("inf")
        self._newton: tuple[float, Tensor, Tensor] | None = None  # −Q̃₂, γ and step that the last γ came from

    def next(
        self, gamma: Float[Tensor, "m c"], share: Float[Tensor, "m c"], here: Bool[Tensor, " m"], found: Occupancy
    ) -> Float[Tensor, "m c"]:
        step = -share.clamp_min(1e-300).log().clamp(-LONGEST, LONGEST)
        if found.overlap is None:
            return self._extrapolated(gamma, step)
        return self._by_newton(gamma, step, here, found)

    def _by_newton(self, gamma: Tensor, scaling: Tensor, here: Tensor, found: Occupancy) -> Tensor:
        """γ + H⁻¹ (τ − Σ_j P_j), H = diag(Σ_j P_j) − Σ_j P_j P_jᵀ, half the last step where it led upwards; the first
        step is one of iterative scaling, which never does."""
        weight = torch.where(here[:, None], self._tau, 0.0)
        value = float(found.value - (weight * gamma).sum())
        if self._newton is None:
            self._newton = value, gamma, scaling
            return gamma + scaling
        was, before, taken = self._newton
        if not value <= was + 1e-12 * abs(was):
            self._newton = was, before, taken / 2
            return before + taken / 2
        kept = here[:, None].expand_as(gamma).flatten()
        tau, shares = weight.flatten()[kept], found.shares.flatten()[kept]
        assert found.overlap is not None
        curvature = shares.diag() - found.overlap[kept][:, kept] + torch.outer(tau, tau) / tau.sum()  # not flat
        unit = tau.sqrt()
        solved = torch.linalg.lstsq(
            curvature / torch.outer(unit, unit), ((tau - shares) / unit)[:, None], rcond=1e-13, driver="gelsd"
        ).solution[:, 0]
        step = torch.zeros_like(gamma.flatten())
        step[kept] = solved / unit
        step = step.view_as(gamma)
        step = step * min(1.0, LONGEST / max(float(step.abs().max()), 1e-300))
        self._newton = value, gamma, step
        return gamma + step

    def _extrapolated(self, gamma: Tensor, step: Tensor) -> Tensor:
        """The combination of the last γ whose steps cancel best, and its step."""
        weight = self._tau.sqrt().flatten()  # in these units Q̃₂ curves alike in all directions, but for overlap
        residual = float((weight * step.flatten()).norm())
        if residual > WORSE * self._least:
            self._before = self._before[-1:]
        self._least = min(self._least, residual)
        self._before = [*self._before[-REMEMBERED:], (gamma.flatten(), step.flatten())]
        if len(self._before) == 1:
            return gamma + step
        gammas, steps = (torch.stack(each).diff(dim=0) for each in zip(*self._before, strict=True))
        share = torch.linalg.lstsq((steps * weight).T, (step.flatten() * weight)[:, None], driver="gelsd").solution
        extrapolated: Tensor = gamma + step - (share.T @ (gammas + steps)).view_as(gamma)
        return extrapolated
