"""Empirical likelihood in float64: multipliers, profile likelihood, classical density-ratio fits."""

from fedspm.likelihood.drm import DensityRatioFit, Separated, fit_drm
from fedspm.likelihood.multipliers import Infeasible, Multipliers, NotConverged, solve_multipliers

__all__ = [
    "DensityRatioFit",
    "Infeasible",
    "Multipliers",
    "NotConverged",
    "Separated",
    "fit_drm",
    "solve_multipliers",
]
