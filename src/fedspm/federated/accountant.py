"""What was spent of a client's privacy: the (ε, δ) of the noised replies that left it, by Opacus's accountant.

Adjacency: all rows of one client against any others, as many. The server draws who takes part and sees every reply by
itself, so being drawn hides nothing: a client pays in full for the rounds that it took part in. docs/decisions/0010.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm


def spent(algorithm: Algorithm, shared: Tensors, count: int) -> dict[str, Any]:
    """(ε, δ) of a client that sent `count` noised vectors (`federated.releases`), and what has no noise."""
    privacy = algorithm.settings.privacy
    return {
        "epsilon": epsilon(privacy.noise, count, privacy.delta) if privacy.noise else None,
        "delta": privacy.delta,
        "releases": count,
        "not_covered": not_covered(algorithm, shared),
    }


def epsilon(noise: float, count: int, delta: float) -> float:
    """Of `count` Gaussian mechanisms whose noise is z/2 times the sensitivity: `federated.transforms`."""
    accountant = _accountant()
    accountant.history = [(noise / 2, 1.0, count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the bound could be tighter for very large or very small ε
        return float(accountant.get_epsilon(delta))


def not_covered(algorithm: Algorithm, shared: Tensors) -> list[str]:
    """Steps whose replies leave without noise, so that no ε holds for them."""
    settings = algorithm.settings
    noised = {name.split(".")[0] for name in shared} | {"tau"}
    exact = {step for step, names in algorithm.leaves.items() if not names <= noised} - algorithm.after
    if settings.em.start == "random" or settings.components == 1:
        exact -= {"moments", "cluster"}
    if max(algorithm.task.counts) < settings.min_count:
        exact &= {"evaluate"}  # no sum leaves
    return sorted(exact) + [f"{step} (which model)" for step in sorted(algorithm.partial)]


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
