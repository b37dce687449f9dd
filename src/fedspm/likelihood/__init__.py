"""Empirical likelihood in float64: multipliers, profile likelihood, classical density-ratio fits."""

from fedspm.likelihood.drm import DensityRatioFit, fit_drm
from fedspm.likelihood.dual import Separated
from fedspm.likelihood.goodness import GoodnessOfFit, goodness_of_fit
from fedspm.likelihood.multipliers import Infeasible, Multipliers, NotConverged, solve_multipliers
from fedspm.likelihood.profile import accumulation_factors, exact_q2, gauge_shift, profile_log_el, surrogate_q2

__all__ = [
    "DensityRatioFit",
    "GoodnessOfFit",
    "Infeasible",
    "Multipliers",
    "NotConverged",
    "Separated",
    "accumulation_factors",
    "exact_q2",
    "fit_drm",
    "gauge_shift",
    "goodness_of_fit",
    "profile_log_el",
    "solve_multipliers",
    "surrogate_q2",
]
