"""Convergence along training, as the paper's appendix measures it: F, f⁽ᵗ⁾, f̃⁽ᵗ⁾, their gradients, the bridge errors.

The headline is F = −pℓ/n at `normalised` γ, where eq. 6 has the solution λ = τ/n in every round and ∇F = ∇f = ∇f̃.

The paper's bridge errors compare f⁽ᵗ⁾ = −Q₂⁽ᵗ⁾/n with f̃⁽ᵗ⁾ = −Q̃₂⁽ᵗ⁾/n at γ as SGD left them, with the exact posterior
w⁽ᵗ⁾ at ζ⁽ᵗ⁾; f and f̃ are taken at φ⁽ᵗ⁾ and at φ⁽ᵗ⁺¹⁾. By the lemma on the EM gradient bridge ∇_φF(ζ⁽ᵗ⁾) = ∇f⁽ᵗ⁾(φ⁽ᵗ⁾).
What needs eq. 6 is given twice: in the gauge in which the weights of λ = τ/n sum to one (`fixed`), and `raw`, where it
often has no solution (then None).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import INPUT
from fedspm.likelihood.multipliers import Infeasible, NotConverged
from fedspm.likelihood.normalised import Normalised, normalised
from fedspm.likelihood.profile import (
    Array,
    ExactObjective,
    exact_q2,
    gauge_shift,
    in_fixed_gauge,
    log_posterior,
    surrogate_q2,
    total_responsibilities,
)
from fedspm.mixture.heads import with_trained_heads
from fedspm.mixture.model import TILT, log_ratio
from fedspm.mixture.normalisers import as_trained
from fedspm.mixture.semiparametric import require_semiparametric
from fedspm.nn.sgd import chunks

LEAST = 1.0  # a component with less than one row has no distribution to diagnose
VANISHED = 1e-18  # ‖∇f̃‖² below which a round does not count for Γ₂: the paper's 1e-9, for sums over some 30,000 rows
QUANTILE = 0.95


Data = Sequence[tuple[Tensor, Tensor]]  # x and y of every client
Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@dataclass
class Diagnosis:
    """Measures a training from outside: it sees the rows of all clients, which only a simulation can."""

    algorithm: Any
    data: Data
    map: Map = map

    def __post_init__(self) -> None:
        require_semiparametric(self.algorithm)
        self._client = np.repeat(np.arange(len(self.data)), [len(y) for _, y in self.data])
        self._last: tuple[list[Tensor], Array] | None = None

    def before(self, shared: Tensors, privates: Sequence[Tensors]) -> "Before":
        """Everything at ζ⁽ᵗ⁾, with w⁽ᵗ⁾ for what comes after."""
        shared, privates = as_trained(shared), [with_trained_heads(private) for private in privates]
        ratios = self.log_ratios(shared)
        with np.errstate(divide="ignore"):
            mixing = np.log(np.stack([private["mixing"].cpu().double().numpy() for private in privates]))
        likelihood = self._likelihood(shared, privates)
        w = np.exp(log_posterior(ratios, self._client, mixing, likelihood))
        shift = gauge_shift(ratios, self._client, w)
        n = len(w)
        surrogate = surrogate_q2(ratios, self._client, w)
        settled = normalised(ratios, self._client, mixing, likelihood)
        fixed = _solved(lambda: exact_q2(ratios + shift, self._client, w, LEAST))
        raw = _solved(lambda: exact_q2(ratios, self._client, w, LEAST))
        fixed = fixed and in_fixed_gauge(fixed, ratios, self._client, w)
        at_normalisers = surrogate_q2(settled.log_ratio, self._client, settled.responsibilities)
        pulls = [each.pull / n for each in (surrogate, at_normalisers, fixed, raw) if each is not None]
        squares = iter(self._squared_gradients(shared, pulls))
        line: dict[str, Any] = {
            "shift": shift,
            "surrogate": -surrogate.value / n,
            "surrogate_gradient": sum(next(squares).values()),
        }

        def rest(w: Array) -> float:
            """pℓ − Q₂: Q₁ + Q₃ (eq. 8) − n log n + the entropy of w, at the parameters whose posterior w is"""
            with np.errstate(divide="ignore", invalid="ignore"):
                parts = np.where(w > 0, w * (likelihood + mixing[self._client] - np.log(w)), 0)
            return float(parts.sum() - n * np.log(n))

        blocks = next(squares)
        line["normalised"] = {
            "F": -(at_normalisers.value + n * np.log(n) + rest(settled.responsibilities)) / n,
            "gradient": sum(blocks.values()),
            "blocks": blocks,
            **_weights_of(settled, self._client, n),
        }
        for name, objective in (("fixed", fixed), ("raw", raw)):
            line[name] = objective and {
                "F": -(objective.value + rest(w)) / n,
                "gradient": sum((found := next(squares)).values()),
                "blocks": found,
                "f": -objective.value / n,
                "max_multiplier": float(np.abs(objective.solution.multipliers).max()),
                "effective_rows": float(1 / np.square(objective.solution.weights).sum()),
            }
        return Before(self, w, line)

    def log_ratios(self, shared: Tensors) -> Array:
        """log_ratio of every pooled row for every client and component, in double precision, (n, m, C).

        The end of one round is the start of the next: its log-ratios are kept, with the tensors they came from.
        """
        sources = [shared[name] for name in (*self.algorithm.router.names, *TILT, *INPUT)]
        if self._last and all(one is other for one, other in zip(sources, self._last[0], strict=True)):
            return self._last[1]
        xi, gamma = (shared[name].cpu().double() for name in TILT)

        @torch.no_grad()
        def of(x: Tensor) -> Array:
            features = self.algorithm.router(shared, self.algorithm.standardise(shared, x)).cpu().double()
            return np.asarray(log_ratio(xi, gamma, features))

        ratios = np.concatenate(list(self.map(of, (x for rows, _ in self.data for x in chunks(rows)))))
        self._last = sources, ratios
        return ratios

    def _likelihood(self, shared: Tensors, privates: Sequence[Tensors]) -> Array:
        @torch.no_grad()
        def of(job: tuple[Tensors, Tensor, Tensor]) -> Array:
            private, x, y = job
            found = self.algorithm.label_likelihood(private, shared, self.algorithm.standardise(shared, x), y)
            return np.asarray(found.cpu().double())

        jobs = (
            (private, x, y)
            for private, (rows, labels) in zip(privates, self.data, strict=True)
            for x, y in zip(chunks(rows), chunks(labels), strict=True)
        )
        return np.concatenate(list(self.map(of, jobs)))

    def _squared_gradients(self, shared: Tensors, pulls: Sequence[Array]) -> list[dict[str, float]]:
        """‖∇_φ‖² of each objective by block (γ, ξ, ν) from its pull on the log-ratios, by the chain rule through the
        router encoder."""
        router = self.algorithm.router
        names = (*(name for name in router.parameters if name not in router.frozen), *TILT)

        def of(job: tuple[Tensor, list[Tensor]]) -> list[list[Tensor]]:
            x, forces = job
            moving = {name: shared[name].detach().requires_grad_() for name in names}
            features = router(shared | moving, self.algorithm.standardise(shared, x)).cpu().double()
            ratio = log_ratio(moving["tilt.xi"].cpu().double(), moving["tilt.gamma"].cpu().double(), features)
            inputs = [moving[name] for name in names]
            return [
                [g.cpu().double() for g in torch.autograd.grad(ratio, inputs, force, retain_graph=True)]
                for force in forces
            ]

        def jobs() -> Iterator[tuple[Tensor, list[Tensor]]]:
            first = 0
            for rows, _ in self.data:
                for x in chunks(rows):
                    yield x, [torch.from_numpy(pull[first : first + len(x)]) for pull in pulls]
                    first += len(x)

        totals: list[list[Tensor]] | None = None
        for parts in self.map(of, jobs()):
            totals = (
                parts
                if totals is None
                else [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(totals, parts, strict=True)]
            )
        assert totals is not None
        sums = [dict(zip(names, (float(g.square().sum()) for g in gradient), strict=True)) for gradient in totals]
        return [{"gamma": by.pop("tilt.gamma"), "xi": by.pop("tilt.xi"), "nu": float(sum(by.values()))} for by in sums]


@dataclass(frozen=True)
class Before:
    """What was measured before a round; the figures after it use the same w⁽ᵗ⁾."""

    diagnosis: Diagnosis
    responsibilities: Array
    line: Mapping[str, Any]

    def after(self, shared: Tensors) -> dict[str, Any]:
        """The whole line of a round: f⁽ᵗ⁾ and f̃⁽ᵗ⁾ at φ⁽ᵗ⁺¹⁾ added."""
        client, w, n = self.diagnosis._client, self.responsibilities, len(self.responsibilities)
        shared = as_trained(shared)
        ratios = self.diagnosis.log_ratios(shared)
        shift = gauge_shift(ratios, client, w)
        line = dict(self.line) | {"surrogate_after": -surrogate_q2(ratios, client, w).value / n, "shift_after": shift}
        for name, moved in (("fixed", ratios + shift), ("raw", ratios)):
            if line[name] is not None:
                objective = _solved(lambda moved=moved: exact_q2(moved, client, w, LEAST))  # type: ignore[misc]
                line[name] = line[name] | {"f_after": None if objective is None else -objective.value / n}
        return line


def _weights_of(found: Normalised, client: Array, n: int) -> dict[str, float]:
    """λ = τ/n and r of eq. 5 where γ are normalised: the largest multiplier, and over how many rows r spreads; and how
    far from eq. 4 γ were as trained, and are here."""
    tau = total_responsibilities(client, found.responsibilities, found.log_ratio.shape[1])
    with np.errstate(divide="ignore"):
        log_r = -logsumexp(found.log_ratio + np.log(tau), axis=(1, 2))
    spread = float(np.exp(2 * logsumexp(log_r) - logsumexp(2 * log_r)))
    return {
        "max_multiplier": float(tau.max() / n),
        "effective_rows": spread,
        "defect": found.defect,
        "residual": found.residual,
    }


def _solved(objective: Callable[[], ExactObjective]) -> ExactObjective | None:
    try:
        return objective()
    except (Infeasible, NotConverged):
        return None


# -- the headline ----------------------------------------------------------------------------------------------------


def normalised_lines(lines: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """What was measured at normalised γ, by round counted from one; nothing in runs of before 2026-11-18."""
    return {line["round"] + 1: line["normalised"] for line in lines if "normalised" in line}


# -- the bridge errors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bridge:
    """The three panels of the momentum figure, over the rounds in which what they show exists."""

    rounds: Array  # in which eq. 6 had a solution
    gradient: Array  # T⁻¹ Σ ‖∇F‖², for every T
    epsilon: Array  # ε̄_T = T⁻¹ Σ ε̂⁽ᵗ⁾
    compared: Array  # rounds in which it had one before and after, which δ̂ compares
    delta: Array  # δ̄_T = T^(−1/2) Σ δ̂⁽ᵗ⁾, where rounds that were not compared count as the mean of those that were
    gamma2: float  # Γ̂₂: the 95 % quantile of ‖∇f‖²/‖∇f̃‖²
    unsolved: int  # rounds without a solution


def shown_bridge(bridge: Bridge | None) -> list[str]:
    """T⁻¹ Σ ‖∇F‖², Γ̂₂, ε̄_T and δ̄_T after the last solved round, for a table."""
    if bridge is None:
        return ["–"] * 4
    values = [bridge.gradient[-1], bridge.gamma2, bridge.epsilon[-1], *bridge.delta[-1:]]
    return [*(f"{value:.3g}" for value in values), "–"][:4]


def solved_lines(lines: Sequence[Mapping[str, Any]], gauge: str) -> list[Mapping[str, Any]]:
    """Rounds in which eq. 6 had a solution."""
    return [line for line in lines if line[gauge] is not None]


def bridge_errors(lines: Sequence[Mapping[str, Any]], gauge: str = "fixed") -> Bridge:
    """Γ̂₂, ε̂ and δ̂ from the lines of a training; rounds whose system had no solution are left out and counted."""
    if gauge not in ("fixed", "raw"):
        raise FedSPMError(f"there is no gauge {gauge!r}; there are fixed and raw")
    solved = solved_lines(lines, gauge)
    if not solved:
        raise FedSPMError(f"none of the {len(lines)} diagnosed rounds has a solution of eq. 6 in the {gauge} gauge")
    exact = np.array([line[gauge]["gradient"] for line in solved])
    surrogate = np.array([line["surrogate_gradient"] for line in solved])
    valid = surrogate > VANISHED
    if not valid.any():
        raise FedSPMError(f"‖∇f̃‖² is below {VANISHED:g} in every diagnosed round: Γ₂ cannot be estimated")
    gamma2 = float(np.quantile(exact[valid] / surrogate[valid], QUANTILE))
    epsilon = np.maximum(exact - gamma2 * surrogate, 0)
    compared = [line for line in solved if line[gauge]["f_after"] is not None]
    moved = np.array([line[gauge]["f_after"] - line[gauge]["f"] for line in compared])
    moved_surrogate = np.array([line["surrogate_after"] - line["surrogate"] for line in compared])
    delta = np.maximum(moved - moved_surrogate, 0)
    count, rounds = np.arange(1, len(solved) + 1), _rounds(compared)
    return Bridge(
        rounds=_rounds(solved),
        gradient=np.cumsum(exact) / count,
        epsilon=np.cumsum(epsilon) / count,
        compared=rounds,
        delta=np.cumsum(delta) / count[: len(delta)] * np.sqrt(rounds),
        gamma2=gamma2,
        unsolved=len(lines) - len(solved),
    )


def _rounds(lines: Sequence[Mapping[str, Any]]) -> Array:
    """Counted from one, as everywhere else."""
    return np.array([line["round"] + 1 for line in lines], dtype=int)
