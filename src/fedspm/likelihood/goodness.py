"""Does the basis suffice? A density ratio model that holds has nearly the distributions that the samples have alone.

The statistic is that of Qin and Zhang (1997), for m samples and for every coordinate x_k of their rows:

    Δ = max_{i,k} sup_t √n_i |F̂_ik(t) − F̃_ik(t)|,   F̂ as fitted, F̃ of sample i alone

It has no distribution of its own, so it is compared with that of samples drawn from the fitted P̂_i, each fitted anew.
"""

from typing import NamedTuple

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.likelihood.drm import DensityRatioFit, fit_drm

Array = np.ndarray
ROUNDING = 1e-9  # of the statistic: a model with a parameter for every value is never farther off
UNFITTED = 0.1  # of the draws at most: without those that are separated the others are a biased choice


class GoodnessOfFit(NamedTuple):
    statistic: float
    p_value: float
    draws: int  # how many could be fitted
    sample: int  # where the fit is farthest off
    coordinate: int


def goodness_of_fit(fit: DensityRatioFit, draws: int = 199, seed: int = 0) -> GoodnessOfFit:
    """The p-value is at least 1/(draws + 1); it takes `draws` fits."""
    for name, value, least in (("draws", draws, 1), ("seed", seed, 0)):
        if not isinstance(value, int | np.integer) or value < least:
            raise FedSPMError(f"{name} = {value} must be a whole number from {least}")
    random, drawn = np.random.default_rng(seed), []
    distances = _distances(fit)
    shares = fit.all_probabilities / fit.all_probabilities.sum(0)
    for _ in range(draws):
        rows = [random.choice(len(p), count, p=p) for p, count in zip(shares.T, fit.counts, strict=True)]
        try:
            drawn.append(_distances(fit_drm([fit.pooled[j] for j in rows], fit.basis)).max())
        except FedSPMError as error:
            failed = error
    if len(drawn) < (1 - UNFITTED) * draws:
        raise FedSPMError(
            f"{draws - len(drawn)} of {draws} draws from the fitted model could not be fitted ({failed}): the samples "
            "are too small, or too far apart, for this test"
        )
    statistic = distances.max()
    sample, coordinate = np.unravel_index(distances.argmax(), distances.shape)
    beyond = int((np.array(drawn) >= statistic - ROUNDING).sum())
    return GoodnessOfFit(float(statistic), (1 + beyond) / (1 + len(drawn)), len(drawn), int(sample), int(coordinate))


def _distances(fit: DensityRatioFit) -> Array:
    """√n_i sup_t |F̂_ik(t) − F̃_ik(t)|, (m, k)"""
    sizes = np.array(fit.counts)
    own = np.repeat(np.diag(1 / sizes), sizes, axis=0)  # mass of every row in its own sample, (n, m)
    excess = fit.all_probabilities - own
    found = []
    for values in fit.pooled.reshape(len(excess), -1).T:
        order = np.argsort(values, kind="stable")
        complete = np.r_[np.diff(values[order]) > 0, True]  # all rows of a value count at once
        found.append(np.abs(np.cumsum(excess[order], axis=0)[complete]).max(0) * np.sqrt(sizes))
    return np.stack(found, axis=1)
