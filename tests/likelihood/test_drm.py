"""Classical density-ratio fits against fifty digits, scikit-learn, simulation and the multiplier system."""

import mpmath
import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from fedspm.errors import FedSPMError
from fedspm.likelihood import Separated, fit_drm, solve_multipliers


def quadratic(x):
    return np.c_[x, x**2]


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(8)
    return [random.normal(0, 1, 60), random.normal(0.5, 1.3, 45), random.normal(-0.4, 0.8, 50)]


@pytest.fixture(scope="module")
def fit(samples):
    return fit_drm(samples, basis=quadratic)


def test_against_fifty_digits(samples, fit):
    """The score equations of the dual, solved by Newton's method in fifty digits, and the inverse information there."""
    x = np.concatenate(samples)
    sample = np.repeat(range(3), [len(part) for part in samples])
    with mpmath.workdps(50):
        z = [[mpmath.mpf(1), mpmath.mpf(float(v)), mpmath.mpf(float(v)) ** 2] for v in x]
        rho = [mpmath.mpf(len(part)) / len(x) for part in samples]
        beta = mpmath.matrix([float(v) for i in (1, 2) for v in (fit.gamma[i], *fit.xi[i])])
        for _ in range(6):
            gradient, information = mpmath.zeros(6, 1), mpmath.zeros(6, 6)
            value, mixtures = mpmath.mpf(0), []
            for row, own in zip(z, sample, strict=True):
                scores = [mpmath.mpf(0), *(sum(beta[3 * k + c] * row[c] for c in range(3)) for k in range(2))]
                parts = [rho[i] * mpmath.exp(scores[i]) for i in range(3)]
                mixtures.append(sum(parts))
                value += scores[own] - mpmath.log(mixtures[-1])
                share = [part / mixtures[-1] for part in parts]
                for a in range(2):
                    for c in range(3):
                        gradient[3 * a + c] += ((own == a + 1) - share[a + 1]) * row[c]
                        for b in range(2):
                            weight = share[a + 1] * ((a == b) - share[b + 1])
                            for d in range(3):
                                information[3 * a + c, 3 * b + d] += weight * row[c] * row[d]
            beta += mpmath.lu_solve(information, gradient)
        covariance = information**-1
        for a in range(2):
            for b in range(2):
                covariance[3 * a, 3 * b] -= ((a == b) / rho[a + 1] + 1 / rho[0]) / len(x)
        errors = [float(mpmath.sqrt(covariance[k, k])) for k in range(6)]
        log_el = float(value - len(x) * mpmath.log(len(x)))
        weights = [float(1 / (len(x) * mixture)) for mixture in mixtures]
    found = np.array([v for i in (1, 2) for v in (fit.gamma[i], *fit.xi[i])])
    np.testing.assert_allclose(found, [float(v) for v in beta], rtol=1e-9)
    np.testing.assert_allclose(fit.weights, weights, rtol=1e-9)
    assert fit.log_el == pytest.approx(log_el, rel=1e-12)
    own = [v for i in (1, 2) for v in (fit.standard_errors.gamma[i], *fit.standard_errors.xi[i])]
    np.testing.assert_allclose(own, errors, rtol=1e-8)


def test_at_the_maximum_the_multipliers_are_the_sample_fractions(samples, fit):
    found = solve_multipliers(log_ratio=fit.log_ratios[:, 1:])
    np.testing.assert_allclose(found.multipliers, np.array(fit.counts[1:]) / sum(fit.counts), rtol=1e-8)
    np.testing.assert_allclose(found.weights, fit.weights, rtol=1e-9)
    own = fit.log_ratios[np.arange(155), np.repeat(range(3), fit.counts)]
    assert found.sum_log_weights + own.sum() == pytest.approx(fit.log_el, rel=1e-12)


def test_slopes_are_those_of_a_logistic_regression(samples):
    fit = fit_drm(samples[:2], basis=quadratic)
    x, y = np.concatenate(samples[:2]), np.repeat([0, 1], [60, 45])
    regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(quadratic(x), y)
    np.testing.assert_allclose(fit.xi[1], regression.coef_[0], rtol=1e-4)
    assert fit.gamma[1] + np.log(45 / 60) == pytest.approx(regression.intercept_[0], rel=1e-4)


def test_the_reference_is_a_gauge(samples, fit):
    other = fit_drm(samples, basis=quadratic, reference=2)
    assert other.log_el == pytest.approx(fit.log_el, rel=1e-13)
    np.testing.assert_allclose(other.xi, fit.xi - fit.xi[2], atol=1e-10)
    np.testing.assert_allclose(other.gamma, fit.gamma - fit.gamma[2], atol=1e-10)
    for i in range(3):
        np.testing.assert_allclose(other.probabilities(i), fit.probabilities(i), rtol=1e-9)
    assert other.standard_errors.gamma[2] == 0


def test_every_sample_has_a_distribution(samples, fit):
    for i in range(3):
        assert fit.probabilities(i).sum() == pytest.approx(1, abs=1e-12)
    points = np.sort(np.concatenate(samples))
    values = fit.cdf(1, points)
    assert (np.diff(values) >= 0).all()
    assert fit.cdf(1, points[0] - 1) == 0
    assert values[-1] == pytest.approx(1)
    levels = np.array([0.1, 0.5, 0.9])
    found = fit.quantile(1, levels)
    assert (fit.cdf(1, found) >= levels - 1e-12).all()
    assert (fit.cdf(1, np.nextafter(found, -np.inf)) < levels).all()
    np.testing.assert_allclose(fit.density_ratio(points[:5])[:, 0], 1)


def test_standard_errors_are_those_of_repeated_samples():
    """Two normal samples of fixed sizes: the spread of 300 fits against the mean of their standard errors."""
    random = np.random.default_rng(1)
    fits = [fit_drm([random.normal(0, 1, 150), random.normal(0.6, 1, 100)], basis=lambda x: x) for _ in range(300)]
    for estimates, errors in (
        ([fit.gamma[1] for fit in fits], [fit.standard_errors.gamma[1] for fit in fits]),
        ([fit.xi[1, 0] for fit in fits], [fit.standard_errors.xi[1, 0] for fit in fits]),
    ):
        assert np.std(estimates) == pytest.approx(np.mean(errors), rel=0.15)


def test_the_equality_test_holds_its_level():
    random = np.random.default_rng(2)
    p = [fit_drm([random.gamma(2, size=80) for _ in range(3)], quadratic).test_equal().p_value for _ in range(300)]
    assert stats.kstest(p, "uniform").pvalue > 0.001
    shifted = fit_drm([random.normal(size=80), random.normal(1, size=80)], basis=lambda x: x).test_equal()
    assert shifted.degrees_of_freedom == 1
    assert shifted.p_value < 1e-4


def test_vectors_and_bases_far_from_zero():
    random = np.random.default_rng(3)
    near = [random.normal(size=(80, 2)), random.normal(0.4, 1, size=(70, 2))]
    shift = np.array([1e4, -300.0])
    here, there = fit_drm(near, basis=lambda x: x), fit_drm([x + shift for x in near], basis=lambda x: x)
    np.testing.assert_allclose(there.xi, here.xi, rtol=1e-8)
    assert there.log_el == pytest.approx(here.log_el, rel=1e-12)
    with pytest.raises(FedSPMError, match="scalars"):
        here.cdf(0, [0.0])


def test_nearly_separated_samples_converge_and_separated_ones_say_so():
    random = np.random.default_rng(4)
    low, high = random.uniform(0, 1, 50), random.uniform(1, 2, 50)
    with pytest.raises(Separated, match="separated"):
        fit_drm([low, high], basis=lambda x: x)
    with pytest.raises(Separated):  # quasi-separated: they share one point
        fit_drm([np.r_[low, 1.0], np.r_[high, 1.0]], basis=lambda x: x)
    with pytest.raises(Separated):  # one of three
        fit_drm([low, random.uniform(0, 1, 50), high], basis=lambda x: x)
    fit = fit_drm([np.r_[low, 1.001], np.r_[high, 0.999]], basis=lambda x: x)
    assert fit.xi[1, 0] > 30
    assert fit.probabilities(1).sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("basis", "sentence"),
    [
        (lambda x: np.c_[x, np.ones(len(x))], "column 1 of the basis is constant"),
        (lambda x: np.c_[x, 2 * x + 1], "column 1 of the basis depends"),
        (lambda x: np.full(len(x), np.nan), "not finite"),
        (lambda x: x[:3], "expected"),
    ],
)
def test_a_bad_basis_gets_a_sentence(samples, basis, sentence):
    with pytest.raises(FedSPMError, match=sentence):
        fit_drm(samples, basis)


def test_bad_samples_get_a_sentence(samples):
    for wrong, sentence in (
        (samples[:1], "at least two"),
        ([samples[0], []], "sample 1"),
        ([samples[0], np.ones((3, 2))], "sample 1 has rows"),
        ([samples[0], [1.0, np.nan]], "not finite"),
    ):
        with pytest.raises(FedSPMError, match=sentence):
            fit_drm(wrong, quadratic)
    with pytest.raises(FedSPMError, match="reference"):
        fit_drm(samples, quadratic, reference=3)


def test_the_summary_can_be_read(fit):
    text = fit.summary()
    for word in ("3 samples (60, 45, 50 rows)", "std. error", "1  gamma", "2  xi_2", "4 degrees of freedom"):
        assert word in text
    assert max(map(len, text.splitlines())) < 110


@pytest.mark.parametrize("offset", [2e3, 1e4, 1e5])
def test_a_basis_far_from_zero_has_the_same_errors(samples, fit, offset):
    far = fit_drm([x + offset for x in samples], quadratic)
    np.testing.assert_allclose(far.standard_errors.xi[:, 1], fit.standard_errors.xi[:, 1], rtol=1e-4)
    assert far.log_el == pytest.approx(fit.log_el, rel=1e-6)
    assert far.probabilities(2).sum() == pytest.approx(1, abs=1e-10)


def test_single_points(fit):
    assert fit.density_ratio(0.5).shape == (1, 3)
    assert np.isnan(fit.cdf(0, np.nan))
