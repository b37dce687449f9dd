"""What was spent of a client's privacy: the (ε, δ) of the noised replies that left it, exactly.

k Gaussian mechanisms, also if each is chosen after the others were seen, are as one whose mean moves by μ standard
deviations (Dong, Roth and Su 2022, corollary 3.3), and of that one ε and δ are known in closed form (Balle and Wang
2018, theorem 8):

    μ² = Σ_k (Δ_k / σ_k)²        δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)

Adjacency: all rows of one client against any others, as many. Noise is z/2 times the distance that this can make
(`federated.transforms`), so a noised vector adds (2/z)² to μ². The server draws who takes part and sees every reply by
itself, so being drawn hides nothing: a client pays in full for the rounds that it took part in. docs/decisions/0010.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr

from fedspm.federated.algorithm import Algorithm


class Releases:
    """How many noised vectors have left each client since a run began, whatever engine carried them. A vector is an
    update Δ or a τ: a reply with both holds two.

    `keep` is handed the new counts before anything leaves that they count, so that a crash loses none.
    """

    def __init__(self, before: Mapping[str, int] | None = None, keep: Callable[[dict[str, int]], None] | None = None):
        self.of = Counter(before or {})
        self._keep = keep

    def add(self, clients: Iterable[str], count: int) -> None:
        if count:
            self.of.update(dict.fromkeys(clients, count))
            if self._keep:
                self._keep(dict(self.of))

    @property
    def most(self) -> int:
        """Of the client that sent most."""
        return max(self.of.values(), default=0)


def spent(algorithm: Algorithm, count: int) -> dict[str, Any]:
    """(ε, δ) of a client that sent `count` noised vectors, and the steps whose replies have no noise."""
    privacy = algorithm.settings.privacy
    return {
        "epsilon": epsilon(privacy.noise, count, privacy.delta) if privacy.noise else None,
        "delta": privacy.delta,
        "releases": count,
        "not_covered": not_covered(algorithm),
    }


def epsilon(noise: float, count: int, delta: float) -> float:
    """Of `count` noised vectors with `privacy.noise` = z."""
    return gaussian_epsilon(math.sqrt(separation(noise, count)), delta)


def separation(noise: float, count: int) -> float:
    """μ² of `count` noised vectors: (2/z)² each. What leaves in several runs adds."""
    return count * (2 / noise) ** 2


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 whose δ is at most `delta`."""
    if mu == 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    above = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))  # δ(ε) ≤ Φ(μ/2 − ε/μ) ≤ exp(−(ε/μ − μ/2)² / 2)
    return float(brentq(lambda value: log_gaussian_delta(mu, value) - math.log(delta), 0.0, above, xtol=1e-12))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)"""
    return math.exp(log_gaussian_delta(mu, epsilon))


def log_gaussian_delta(mu: float, epsilon: float) -> float:
    """log δ(ε); in log space, since e^ε is too large for a number where Φ is too small for one"""
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(first + math.log1p(-math.exp(second - first))) if second < first else -math.inf


def not_covered(algorithm: Algorithm) -> list[str]:
    """Steps of a training whose replies leave without noise, so that no ε holds for them; none where there is noise
    (`federated.gate.require_covered`)."""
    used = [step for step in algorithm.steps_in_use().values() if step.when != "after training"]
    exact = sorted(step.name for step in used if step.exact)
    return exact + [f"{step.name} (which model)" for step in used if step.partial]


def sentence(found: Mapping[str, Any]) -> str:
    """`spent` for a person."""
    if found["epsilon"] is None:
        exact = ", ".join(found["not_covered"])
        return f"updates were clipped but carry no noise: no ε holds (without noise left also {exact})"
    return (
        f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g} for all rows of a client, from {found['releases']} "
        "noised replies; nothing left without noise"
    )
