"""What the rows of those who were there before say of a newcomer: from all rows, or from a sketch of few points.

The module `mixture.onboarding` has the formulas; D(x) is Σ_i'c τ_i'c exp(γ_i'c + ξ_i'cᵀ h_c(x)).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.mixture.model import TILT, Features, log_ratio

TABLES = (*TILT, "tau")  # shared tables with one row per client
Gradient = Callable[[Tensors], Tensors]  # the newcomer's tilt and log τ → value and gradient of the others' part of −Q̃₂
Whose = Bool[Tensor, " m"]  # which of the clients


@dataclass(frozen=True)
class Others:
    """With whom a newcomer is compared: who they are, and what their rows say."""

    here: Whose
    gradient: Gradient


def baseline_gradient(
    tilt: Tensors, features: Features, log_total: Float[Tensor, " n"], weight: Float[Tensor, " n"]
) -> dict[str, Tensor]:
    """Σ weight · log(D + Σ_c τ_c exp(γ_c + ξ_cᵀ h_c)) over some rows, and its gradient by γ and ξ"""
    features = features.double()
    score = log_ratio(tilt["tilt.xi"], tilt["tilt.gamma"], features) + tilt["log_tau"]
    total = torch.logaddexp(log_total.double(), torch.logsumexp(score, dim=1))
    share = (score - total[:, None]).exp() * weight[:, None]
    moment = torch.einsum("nc,ncd->cd", share, features.expand(-1, share.shape[1], -1))
    return {"value": (weight * total).sum(), "gamma": share.sum(0), "xi": moment}


@dataclass(frozen=True)
class Sketch:
    """The baseline in few points: for clusters of every client's rows in h, their count, mean and Σ r, r = 1 / D."""

    count: Float[Tensor, "m b"]
    mass: Float[Tensor, "m b"]
    centre: Float[Tensor, "m b e d"]

    @property
    def here(self) -> Whose:
        return self.count.sum(1) > 0

    def others(self) -> Others:
        return Others(self.here, self.gradient)

    def gradient(self, tilt: Tensors) -> Tensors:
        """As all rows would; D of a cluster is the harmonic mean over its rows, count / mass."""
        shown = self.count > 0
        count, mass = self.count[shown], self.mass[shown]
        return baseline_gradient(tilt, self.centre[shown], (count / mass).log(), count)

    def moved(self, before: Tensors, after: Tensors) -> "Sketch":
        """When clients come or go D changes, and r with it."""
        change = log_total(before, self.centre.flatten(0, 1)) - log_total(after, self.centre.flatten(0, 1))
        return replace(self, mass=torch.where(self.mass > 0, self.mass * change.view_as(self.mass).exp(), 0.0))

    def joined(self, other: "Sketch") -> "Sketch":
        return Sketch(*(torch.cat([value, getattr(other, name)]) for name, value in vars(self).items()))

    def without(self, client: int) -> "Sketch":
        kept = [i for i in range(len(self.count)) if i != client]
        return Sketch(*(value[kept] for value in vars(self).values()))


def log_total(shared: Tensors, features: Features) -> Float[Tensor, " n"]:
    """log D(x) = logΣ_i'c τ_i'c exp(γ_i'c + ξ_i'cᵀ h_c(x))"""
    tables = {name: shared[name].cpu().to(features.dtype) for name in (*TILT, "tau")}
    ratio = log_ratio(tables["tilt.xi"], tables["tilt.gamma"], features)
    return torch.logsumexp((ratio + tables["tau"].log()).flatten(1), dim=1)


def among(shared: Tensors, here: Whose) -> Tensors:
    """What is shared, as if these clients alone were there: the others have no τ."""
    return shared | {"tau": shared["tau"] * here.to(shared["tau"])[:, None]}
