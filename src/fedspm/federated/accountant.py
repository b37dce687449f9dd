"""What was spent of a client's privacy: the (ε, δ) of the noised replies that left it, by Opacus's accountant.

Adjacency: all rows of one client against any others, as many. The server draws who takes part and sees every reply by
itself, so being drawn hides nothing: a client pays in full for the rounds that it took part in. docs/decisions/0010.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedspm.base.errors import FedSPMError
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
    """Of `count` Gaussian mechanisms whose noise is z/2 times the sensitivity: `federated.transforms`."""
    accountant = _accountant()
    accountant.history = [(noise / 2, 1.0, count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the bound could be tighter for very large or very small ε
        return float(accountant.get_epsilon(delta))


def not_covered(algorithm: Algorithm) -> list[str]:
    """Steps of a training whose replies leave without noise, so that no ε holds for them."""
    used = [step for step in algorithm.steps_in_use().values() if step.when != "after training"]
    exact = {step.name for step in used if step.exact}
    if max(algorithm.task.counts) < algorithm.settings.min_count:  # no sum over training rows leaves
        exact = {step.name for step in used if step.exact and step.rows == "test"}
    return sorted(exact) + [f"{step.name} (which model)" for step in used if step.partial]


def sentence(found: Mapping[str, Any]) -> str:
    """`spent` for a person."""
    exact = ", ".join(found["not_covered"])
    if found["epsilon"] is None:
        return f"updates were clipped but carry no noise: no ε holds (without noise left also {exact})"
    return (
        f"ε = {found['epsilon']:.4g} at δ = {found['delta']:g} for all rows of a client, from {found['releases']} "
        f"noised replies; left without noise, so that no ε holds for it: {exact}"
    )


def _accountant() -> Any:
    try:
        from opacus.accountants import RDPAccountant
    except ImportError as error:
        raise FedSPMError("the privacy accountant is not installed; pip install 'fedspm[privacy]'") from error
    return RDPAccountant()
