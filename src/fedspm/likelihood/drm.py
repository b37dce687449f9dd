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
from scipy.optimize import linprog
from scipy.special import logsumexp
from scipy.stats import chi2, norm

from fedspm.errors import FedSPMError

Array = np.ndarray
Basis = Callable[[Array], Any]
ITERATIONS = 200


class Separated(FedSPMError):
    """The samples can be told apart without error by the basis: the likelihood rises for ever, there is no fit."""


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
    whitening: "Whitening" = field(repr=False)
    coefficients: Array = field(repr=False)  # of the whitened basis, (m, 1 + d)

    @cached_property
    def log_ratios(self) -> Array:
        """log dP_i/dG of every pooled row, (n, m)."""
        return np.asarray(self.whitening.rows @ self.coefficients.T)

    @cached_property
    def covariance(self) -> Array:
        """Of (γ_i, ξ_i) for all samples but the reference, in turn: ((m − 1)(1 + d), …).

        The inverse of the dual information, less n⁻¹ (diag(1/ρ_i) + 11ᵀ/ρ_0) in its γ block: the sample sizes are
        fixed, and the dual treats them as drawn.
        """
        n, others = len(self.weights), [i for i in range(len(self.counts)) if i != self.reference]
        fractions = np.array(self.counts) / n
        share = np.exp(self.log_ratios + np.log(fractions))
        share /= share.sum(1, keepdims=True)
        z = self.whitening.rows
        inverse = _inverse(_information(share[:, others], z))
        gammas = np.arange(len(others)) * z.shape[1]
        correction = (np.diag(1 / fractions[others]) + 1 / fractions[self.reference]) / n
        inverse[np.ix_(gammas, gammas)] -= correction  # the same as for the basis as it came: constants stay constants
        back = np.kron(np.eye(len(others)), self.whitening.back)
        return np.asarray(back @ inverse @ back.T)

    @cached_property
    def standard_errors(self) -> PerParameter:
        """Zero for the reference, whose parameters are zero by the choice of gauge."""
        m, d = self.xi.shape
        errors = np.zeros((m, 1 + d))
        others = [i for i in range(m) if i != self.reference]
        variance = self.covariance.diagonal().reshape(len(others), 1 + d)
        errors[others] = np.sqrt(np.where(variance >= 0, variance, np.nan))
        return PerParameter(errors[:, 0], errors[:, 1:])

    def density_ratio(self, x: Any) -> Array:
        """dP_i/dG at new points, (n, m)."""
        features = _features(self.basis, np.atleast_1d(np.asarray(x, np.float64)))
        return np.asarray(np.exp(self.whitening.of(features) @ self.coefficients.T))

    def probabilities(self, sample: int) -> Array:
        """What P_i gives to every pooled row: it borrows strength from all samples."""
        return np.asarray(self.weights * np.exp(self.log_ratios[:, self._sample(sample)]))

    def cdf(self, sample: int, points: Any) -> Array:
        """F_i at some points, for samples of scalars."""
        values, cumulative = self._steps(sample)
        wanted = np.asarray(points, np.float64)
        below = np.searchsorted(values, wanted, side="right")
        return np.where(np.isnan(wanted), np.nan, np.r_[0.0, cumulative][below])

    def quantile(self, sample: int, levels: Any) -> Array:
        """The smallest pooled value at which F_i reaches a level."""
        values, cumulative = self._steps(sample)
        wanted = np.asarray(levels, np.float64)
        if not ((wanted >= 0) & (wanted <= 1)).all():
            raise FedSPMError("levels must lie between 0 and 1")
        reached = np.searchsorted(cumulative, wanted - 1e-12, side="left")  # a level that is a jump is reached by it
        return np.asarray(values[np.minimum(reached, len(values) - 1)])

    def test_equal(self) -> EqualityTest:
        """The likelihood-ratio test that all samples come from one distribution."""
        n, (m, d) = len(self.weights), self.xi.shape
        statistic = max(0.0, 2 * (self.log_el + n * np.log(n)))
        freedom = (m - 1) * d
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
                z = value / error if error > 0 else np.inf
                lines.append(f"{f'{i}  {name}':10} {value:14.6g} {error:12.4g} {z:9.3f} {2 * norm.sf(abs(z)):9.2g}")
        test = self.test_equal()
        lines.append(
            f"all samples equal: statistic {test.statistic:.4f}, {test.degrees_of_freedom} degrees of freedom, "
            f"p = {test.p_value:.4g}"
        )
        return "\n".join(lines)

    def _sample(self, sample: int) -> int:
        if not 0 <= sample < len(self.counts):
            raise FedSPMError(f"there is no sample {sample}; there are samples 0 to {len(self.counts) - 1}")
        return sample

    def _steps(self, sample: int) -> tuple[Array, Array]:
        if self.pooled.ndim != 1:
            raise FedSPMError("a distribution function needs samples of scalars; these are vectors")
        order = np.argsort(self.pooled, kind="stable")
        return self.pooled[order], np.minimum(np.cumsum(self.probabilities(sample)[order]), 1.0)


def fit_drm(samples: Sequence[Any], basis: Basis, reference: int = 0) -> DensityRatioFit:
    """Fit the model to m samples of scalars (n_i,) or vectors (n_i, k); `basis` maps rows to (n, d)."""
    pooled, counts = _pooled(samples)
    if not 0 <= reference < len(counts):
        raise FedSPMError(f"reference = {reference}: there are samples 0 to {len(counts) - 1}")
    features = _features(basis, pooled)
    n, d = features.shape
    sample = np.repeat(np.arange(len(counts)), counts)
    others = np.array([i for i in range(len(counts)) if i != reference])
    whitening = Whitening.fitted(features)
    coefficients = np.zeros((len(counts), 1 + d))
    coefficients[others], iterations = _newton(whitening.rows, sample, others, np.log(np.array(counts) / n))
    as_it_came = coefficients @ whitening.back.T
    log_ratios = whitening.rows @ coefficients.T
    log_mixture = logsumexp(log_ratios + np.log(np.array(counts) / n), axis=1)
    log_el = float((log_ratios[np.arange(n), sample] - log_mixture).sum() - n * np.log(n))
    return DensityRatioFit(
        gamma=as_it_came[:, 0],
        xi=as_it_came[:, 1:],
        log_el=log_el,
        weights=np.exp(-log_mixture) / n,
        counts=counts,
        reference=reference,
        iterations=iterations,
        basis=basis,
        pooled=pooled,
        whitening=whitening,
        coefficients=coefficients,
    )


def _pooled(samples: Sequence[Any]) -> tuple[Array, tuple[int, ...]]:
    arrays = [np.asarray(sample, np.float64) for sample in samples]
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
    features = np.asarray(basis(rows), np.float64)
    features = features[:, None] if features.ndim == 1 else features
    if features.ndim != 2 or len(features) != len(rows):
        raise FedSPMError(f"the basis made an array of shape {features.shape} of {len(rows)} rows; expected (n, d)")
    if not np.isfinite(features).all():
        raise FedSPMError("the basis made values that are not finite")
    return features


@dataclass(frozen=True)
class Whitening:
    """(1, q) made uncorrelated with unit variance: everything is computed there, far from the origin or not."""

    rows: Array  # of the pooled samples, (n, 1 + d)
    back: Array  # maps coefficients of the whitened columns to those of (1, q)
    mean: Array
    slopes: Array  # (q − mean) @ slopes are the whitened columns

    @classmethod
    def fitted(cls, features: Array) -> "Whitening":
        n, d = features.shape
        mean, spread = features.mean(0), features.std(0)
        constant = spread <= 1e-12 * np.maximum(np.abs(features).max(0), 1e-300)
        if constant.any():
            raise FedSPMError(f"column {int(np.argmax(constant))} of the basis is constant; γ plays that part already")
        q, r = np.linalg.qr((features - mean) / spread)
        if np.abs(r.diagonal()).min() <= 1e-11 * np.abs(r.diagonal()).max():
            column = int(np.argmin(np.abs(r.diagonal())))
            raise FedSPMError(f"column {column} of the basis depends linearly on the others; leave one out")
        slopes = np.linalg.inv(r) * n**0.5 / spread[:, None]
        back = np.eye(1 + d)
        back[1:, 1:] = slopes
        back[0, 1:] = -mean @ slopes
        return cls(np.c_[np.ones(n), q * n**0.5], back, mean, slopes)

    def of(self, features: Array) -> Array:
        return np.asarray(np.c_[np.ones(len(features)), (features - self.mean) @ self.slopes])


def _newton(z: Array, sample: Array, others: Array, offsets: Array) -> tuple[Array, int]:
    """Maximise the dual over β (m − 1, 1 + d) by Newton's method with a line search."""
    n, size = z.shape
    own = np.zeros((n, len(offsets)))
    own[np.arange(n), sample] = 1

    def scores(beta: Array) -> Array:
        all_scores = np.tile(offsets, (n, 1))
        all_scores[:, others] += z @ beta.T
        return all_scores

    def value(all_scores: Array) -> float:
        return float((all_scores[np.arange(n), sample] - logsumexp(all_scores, axis=1)).sum())

    beta = np.zeros((len(others), size))
    all_scores = scores(beta)
    now = value(all_scores)
    smallest = np.inf
    for iteration in range(1, ITERATIONS + 1):
        share = np.exp(all_scores - logsumexp(all_scores, axis=1, keepdims=True))
        gradient = ((own - share)[:, others].T @ z).ravel()
        step = _solved(_information(share[:, others], z), gradient)
        if step is None:
            break  # the information has vanished: separated, as far as can be told
        gain = float(gradient @ step)
        largest = float(np.abs(step).max())
        if largest <= 1e-13 * (1 + np.abs(beta).max()) or (largest < 1e-9 and largest >= smallest / 2):
            return beta, iteration
        smallest = min(smallest, largest)
        length = 1.0
        while True:
            candidate = beta + length * step.reshape(beta.shape)
            all_scores = scores(candidate)
            after = value(all_scores)
            if after >= now + 1e-4 * length * gain - 1e-12 * abs(now) or length < 1e-10:
                break
            length /= 2
        beta, now = candidate, after
        if iteration % 25 == 0 and _separated(z, sample, len(offsets)):
            break
    if _separated(z, sample, len(offsets)):
        raise Separated(
            "the samples are separated by the basis: some direction tells them apart without error, so the likelihood "
            "has no maximum; use fewer basis functions or more data"
        )
    raise FedSPMError(f"the fit did not converge in {iteration} iterations: the samples are nearly separated")


def _information(share: Array, z: Array) -> Array:
    """Σ_j (diag(p_j) − p_j p_jᵀ) ⊗ z_j z_jᵀ, (k(1 + d), k(1 + d)) for k samples."""
    k, size = share.shape[1], z.shape[1]
    blocks = np.empty((k, size, k, size))
    for a in range(k):
        for b in range(a, k):
            weight = share[:, a] * ((a == b) - share[:, b])
            blocks[a, :, b] = (z * weight[:, None]).T @ z
            blocks[b, :, a] = blocks[a, :, b].T
    return blocks.reshape(k * size, k * size)


def _equilibrated(matrix: Array) -> tuple[Array, Array]:
    size = np.sqrt(matrix.diagonal().clip(min=0))
    size[size == 0] = 1
    return matrix / size / size[:, None], size


def _solved(matrix: Array, right: Array) -> Array | None:
    scaled, size = _equilibrated(matrix)
    try:
        factor = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        return None
    return np.asarray(np.linalg.solve(factor.T, np.linalg.solve(factor, right / size)) / size)


def _inverse(matrix: Array) -> Array:
    scaled, size = _equilibrated(matrix)
    return np.asarray(np.linalg.inv(scaled) / size / size[:, None])


def _separated(z: Array, sample: Array, m: int) -> bool:
    """Is there β with (β_own − β_k)ᵀ z_j ≥ 0 for all rows j and samples k, not all of them zero?"""
    n, size = z.shape
    rows = []
    for k in range(m):
        mine = np.flatnonzero(sample != k)
        block = np.zeros((len(mine), m, size))
        block[np.arange(len(mine)), sample[mine]] = z[mine]
        block[:, k] -= z[mine]
        rows.append(block.reshape(len(mine), m * size))
    constraints = np.concatenate(rows)
    found = linprog(-constraints.sum(0), A_ub=-constraints, b_ub=np.zeros(len(constraints)), bounds=(-1, 1))
    return bool(found.status == 0 and -found.fun > 1e-7 * n)
