"""The classical density ratio model: m samples, one basis, fitted by maximum empirical likelihood.

    log dP_i/dG(x) = γ_i + ξ_iᵀ q(x),   γ_0 = 0, ξ_0 = 0 for the reference: G is its distribution (Qin and Lawless 1994)

At the maximum the multipliers are the sample fractions ρ_i, so the log-EL is the dual

    ℓ(γ, ξ) = Σ_i Σ_j (γ_i + ξ_iᵀ q(x_ij)) − Σ_j log Σ_i ρ_i exp(γ_i + ξ_iᵀ q(x_j)) − n log n,

which is concave: multinomial logistic regression of the sample on q(x), with offsets log ρ_i.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp
from scipy.stats import chi2, norm

from fedspm.base.errors import FedSPMError
from fedspm.likelihood.dual import log_shares, maximised
from fedspm.likelihood.influence import Influence
from fedspm.likelihood.numbers import as_numbers
from fedspm.likelihood.whitening import Whitening

Array = np.ndarray
Basis = Callable[[Array], Any]
EPSILON = float(np.finfo(np.float64).eps)
Long = np.longdouble


class PerParameter(NamedTuple):
    """A figure for every γ_i (m,) and every ξ_i (m, d)."""

    gamma: Array
    xi: Array


class EqualityTest(NamedTuple):
    statistic: float
    degrees_of_freedom: int
    p_value: float


@dataclass(frozen=True)
class DensityRatioFit:
    """The fitted model; rows of `weights` are those of the pooled samples in the order given."""

    gamma: Array  # (m,)
    xi: Array  # (m, d)
    log_el: float  # with −n log n
    weights: Array  # r, (n,): the baseline G on the pooled rows
    counts: tuple[int, ...]
    reference: int
    iterations: int
    basis: Basis = field(repr=False)
    pooled: Array = field(repr=False)  # (n,) or (n, k)
    whitening: Whitening = field(repr=False)
    coefficients: Array = field(repr=False)  # of the whitened basis, (m, 1 + d)

    @cached_property
    def log_ratios(self) -> Array:
        """log dP_i/dG of every pooled row, (n, m)."""
        return np.asarray(self.whitening.rows @ self.coefficients.T)

    @cached_property
    def log_mixture(self) -> Array:
        """log Σ_i ρ_i dP_i/dG of every pooled row, (n,)."""
        return np.asarray(logsumexp(self.log_ratios + np.log(np.array(self.counts) / len(self.pooled)), axis=1))

    @cached_property
    def covariance(self) -> Array:
        """Of (γ_i, ξ_i) for all samples but the reference, in turn: ((m − 1)(1 + d), …).

        The same as the inverse of the dual information, less n⁻¹ (diag(1/ρ_i) + 11ᵀ/ρ_0) in its γ block: the sample
        sizes are fixed, and the dual treats them as drawn. Summed over rows, no digits are lost in that difference.
        """
        return self._influence.covariance(self.whitening.back)

    @cached_property
    def standard_errors(self) -> PerParameter:
        """Zero for the reference, whose parameters are zero by the choice of gauge."""
        m, d = self.xi.shape
        errors = np.zeros((m, 1 + d))
        variance = self.covariance.diagonal().reshape(m - 1, 1 + d)
        errors[self._others] = np.sqrt(variance)
        return PerParameter(errors[:, 0], errors[:, 1:])

    def density_ratio(self, x: Any) -> Array:
        """dP_i/dG at new points, (n, m): (n,) of them or one where samples hold scalars, (n, k) or (k,) of vectors."""
        with np.errstate(over="ignore"):  # infinite far out, where its logarithm still is a number
            return np.asarray(np.exp(self.log_density_ratio(x)))

    def log_density_ratio(self, x: Any) -> Array:
        """log dP_i/dG = γ_i + ξ_iᵀ q at new points, (n, m)."""
        points, row = as_numbers("x", x), self.pooled.shape[1:]
        points = points[None] if points.shape == row else points
        if points.ndim != self.pooled.ndim or points.shape[1:] != row:
            expected = f"(n, {row[0]})" if row else "(n,)"
            raise FedSPMError(f"x has shape {points.shape}; expected {expected}, like the samples")
        return np.asarray(self.whitening.of(_features(self.basis, points)) @ self.coefficients.T)

    def probabilities(self, sample: int) -> Array:
        """What P_i gives to every pooled row: it borrows strength from all samples."""
        return np.asarray(self.all_probabilities[:, self._sample(sample)])

    @cached_property
    def all_probabilities(self) -> Array:
        """The same for every sample, (n, m)."""
        return np.asarray(np.exp(self.log_ratios - self.log_mixture[:, None]) / len(self.pooled))

    def cdf(self, sample: int, points: Any) -> Array:
        """F_i at some points, for samples of scalars."""
        values, _, cumulative = self._steps(sample)
        wanted = as_numbers("points", points)
        below = np.searchsorted(values, wanted, side="right")
        return np.where(np.isnan(wanted), np.nan, np.r_[0.0, cumulative][below])

    def cdf_error(self, sample: int, points: Any) -> Array:
        """Standard error of F_i at some points: of `cdf`, or of the mass that a sample has at or below them."""
        values, wanted = self._scalars(), as_numbers("points", points)
        variance = self._influence.variance_of_mass(self._sample(sample), [values <= point for point in wanted.flat])
        return np.asarray(np.where(np.isnan(wanted), np.nan, np.sqrt(variance).reshape(wanted.shape)))

    def quantile(self, sample: int, levels: Any) -> Array:
        """The smallest pooled value at which F_i reaches a level; for level 1 the largest that it gives any mass."""
        values, mass, cumulative = self._steps(sample)
        wanted = as_numbers("levels", levels)
        if not ((wanted >= 0) & (wanted <= 1)).all():
            raise FedSPMError("levels must lie between 0 and 1")
        last = np.flatnonzero(mass)[-1]
        jump = wanted * (1 - 16 * EPSILON)  # a level that is a jump is reached by it
        reached = np.where(wanted < 1, np.searchsorted(cumulative, jump, side="left"), last)
        return np.asarray(values[np.minimum(reached, last)])

    def quantile_interval(self, sample: int, levels: Any, confidence: float = 0.95) -> tuple[Array, Array]:
        """Where F_i, by its standard error at the quantile, may reach a level (Woodruff 1952)."""
        if not 0 < confidence < 1:
            raise FedSPMError(f"confidence = {confidence} must lie between 0 and 1")
        wanted = as_numbers("levels", levels)
        width = norm.isf((1 - confidence) / 2) * self.cdf_error(sample, self.quantile(sample, wanted))
        lower, upper = ((wanted + side * width).clip(0, 1) for side in (-1, 1))
        return self.quantile(sample, lower), self.quantile(sample, upper)

    def test_equal(self, samples: Sequence[int] | None = None) -> EqualityTest:
        """The likelihood-ratio test that all samples, or these, come from one distribution."""
        n, (m, d) = len(self.weights), self.xi.shape
        chosen = sorted({self._sample(i) for i in (range(m) if samples is None else samples)})
        if len(chosen) < 2:
            raise FedSPMError("a test of equality needs at least two samples")
        if len(chosen) == m:
            restricted = -n * np.log(n)
        else:
            parts = np.split(self.pooled, np.cumsum(self.counts)[:-1])
            joined = [np.concatenate([parts[i] for i in chosen]), *(parts[i] for i in range(m) if i not in chosen)]
            restricted = fit_drm(joined, self.basis).log_el
        statistic = max(0.0, 2 * (self.log_el - restricted))
        freedom = (len(chosen) - 1) * d
        return EqualityTest(statistic, freedom, float(chi2.sf(statistic, freedom)))

    def summary(self) -> str:
        """Estimates, standard errors, z values and the test, as text."""
        lines = [
            f"density ratio model: {len(self.counts)} samples ({', '.join(map(str, self.counts))} rows), "
            f"reference {self.reference}, log-EL {self.log_el:.6f}",
            f"{'':10} {'estimate':>14} {'std. error':>12} {'z':>9} {'p':>9}",
        ]
        for i in range(len(self.counts)):
            if i == self.reference:
                continue
            rows = [("gamma", self.gamma[i], self.standard_errors.gamma[i])]
            rows += [
                (f"xi_{k}", value, error)
                for k, (value, error) in enumerate(zip(self.xi[i], self.standard_errors.xi[i], strict=True), 1)
            ]
            for name, value, error in rows:
                z = value / error if error > 0 else np.nan
                lines.append(f"{f'{i}  {name}':10} {value:14.6g} {error:12.4g} {z:9.3f} {2 * norm.sf(abs(z)):9.2g}")
        test = self.test_equal()
        lines.append(
            f"all samples equal: statistic {test.statistic:.4f}, {test.degrees_of_freedom} degrees of freedom, "
            f"p = {test.p_value:.4g}"
        )
        return "\n".join(lines)

    def _sample(self, sample: int) -> int:
        if np.ndim(sample) or sample not in range(len(self.counts)):
            raise FedSPMError(f"there is no sample {sample}; there are samples 0 to {len(self.counts) - 1}")
        return int(sample)

    def _scalars(self) -> Array:
        if self.pooled.size != len(self.pooled):
            raise FedSPMError("a distribution function needs samples of scalars; these are vectors")
        return self.pooled.ravel()

    @cached_property
    def _influence(self) -> Influence:
        return Influence(self.whitening.rows, self.all_probabilities, self.counts, self._others)

    @property
    def _others(self) -> list[int]:
        return [i for i in range(len(self.counts)) if i != self.reference]

    def _steps(self, sample: int) -> tuple[Array, Array, Array]:
        """Pooled values in order, what P_i gives to each, and to all up to it."""
        values = self._scalars()
        order = np.argsort(values, kind="stable")
        mass = self.probabilities(sample)[order]
        return values[order], mass, np.minimum(np.cumsum(mass, dtype=Long).astype(float), 1.0)


def fit_drm(samples: Sequence[Any], basis: Basis, reference: int = 0) -> DensityRatioFit:
    """Fit the model to m samples of scalars (n_i,) or vectors (n_i, k); `basis` maps rows to (n, d)."""
    pooled, counts = _pooled(samples)
    if reference not in range(len(counts)):
        raise FedSPMError(f"reference = {reference}: there are samples 0 to {len(counts) - 1}")
    features = _features(basis, pooled)
    n, d = features.shape
    sample = np.repeat(np.arange(len(counts)), counts)
    others = np.array([i for i in range(len(counts)) if i != reference])
    whitening = Whitening.fitted(features)
    coefficients = np.zeros((len(counts), 1 + d))
    coefficients[others], iterations = maximised(whitening.rows, sample, others, np.log(np.array(counts) / n))
    as_it_came = coefficients @ whitening.back.T
    scores = whitening.rows @ coefficients.T + np.log(np.array(counts) / n)
    sizes = np.array(counts, np.float64)
    log_el = log_shares(scores, sample) - float(sizes @ np.log(sizes))  # Σ_j log ρ_i is taken back, and − n log n
    return DensityRatioFit(
        gamma=as_it_came[:, 0],
        xi=as_it_came[:, 1:],
        log_el=log_el,
        weights=np.exp(-logsumexp(scores, axis=1)) / n,
        counts=counts,
        reference=reference,
        iterations=iterations,
        basis=basis,
        pooled=pooled,
        whitening=whitening,
        coefficients=coefficients,
    )


def _pooled(samples: Sequence[Any]) -> tuple[Array, tuple[int, ...]]:
    arrays = [as_numbers(f"sample {i}", sample) for i, sample in enumerate(samples)]
    if len(arrays) < 2:
        raise FedSPMError(f"at least two samples are needed, {len(arrays)} given")
    for i, array in enumerate(arrays):
        if array.ndim not in (1, 2) or len(array) == 0:
            raise FedSPMError(f"sample {i} has shape {array.shape}; expected (n,) or (n, k) with n > 0")
        if array.shape[1:] != arrays[0].shape[1:]:
            raise FedSPMError(f"sample {i} has rows of shape {array.shape[1:]}, sample 0 of {arrays[0].shape[1:]}")
        if not np.isfinite(array).all():
            raise FedSPMError(f"sample {i} has values that are not finite")
    return np.concatenate(arrays), tuple(map(len, arrays))


def _features(basis: Basis, rows: Array) -> Array:
    features = as_numbers("what the basis makes", basis(rows))
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or len(features) != len(rows) or features.shape[1] == 0:
        raise FedSPMError(f"the basis made an array of shape {features.shape} of {len(rows)} rows; expected (n, d)")
    if not np.isfinite(features).all():
        raise FedSPMError("the basis made values that are not finite")
    return features
