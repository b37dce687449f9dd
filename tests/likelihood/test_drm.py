"""Classical density-ratio fits against fifty digits, scikit-learn, simulation and the multiplier system."""

import warnings

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression

from fedspm.base.errors import FedSPMError
from fedspm.likelihood import Separated, fit_drm, solve_multipliers
from fedspm.likelihood.dual import _all_at_home


def quadratic(x):
    return np.c_[x, x**2]


@pytest.fixture(scope="module")
def samples():
    random = np.random.default_rng(8)
    return [random.normal(0, 1, 60), random.normal(0.5, 1.3, 45), random.normal(-0.4, 0.8, 50)]


@pytest.fixture(scope="module")
def fit(samples):
    return fit_drm(samples, basis=quadratic)


def in_fifty_digits(samples, features, fit):
    """The score equations of the dual, solved by Newton's method in fifty digits from the fit, reference 0: parameters,
    weights, log-EL and the standard errors from the inverse information there."""
    sizes = [len(part) for part in samples]
    n, m, size = sum(sizes), len(sizes), 1 + features.shape[1]
    sample = np.repeat(range(m), sizes)
    with mpmath.workdps(50):
        z = [[mpmath.mpf(1), *(mpmath.mpf(float(v)) for v in row)] for row in features]
        rho = [mpmath.mpf(count) / n for count in sizes]
        beta = mpmath.matrix([float(v) for i in range(1, m) for v in (fit.gamma[i], *fit.xi[i])])
        for _ in range(8):
            gradient, information = mpmath.zeros(len(beta), 1), mpmath.zeros(len(beta), len(beta))
            value, mixtures = mpmath.mpf(0), []
            for row, own in zip(z, sample, strict=True):
                scores = [0, *(sum(beta[size * k + c] * row[c] for c in range(size)) for k in range(m - 1))]
                parts = [rho[i] * mpmath.exp(scores[i]) for i in range(m)]
                mixtures.append(sum(parts))
                value += scores[own] - mpmath.log(mixtures[-1])
                share = [part / mixtures[-1] for part in parts]
                for a in range(m - 1):
                    for c in range(size):
                        gradient[size * a + c] += ((own == a + 1) - share[a + 1]) * row[c]
                        for b in range(m - 1):
                            weight = share[a + 1] * ((a == b) - share[b + 1])
                            for d in range(size):
                                information[size * a + c, size * b + d] += weight * row[c] * row[d]
            beta += mpmath.lu_solve(information, gradient)
        covariance = information**-1
        for a in range(m - 1):
            for b in range(m - 1):
                covariance[size * a, size * b] -= ((a == b) / rho[a + 1] + 1 / rho[0]) / n
        errors = [float(mpmath.sqrt(covariance[k, k])) for k in range(len(beta))]
        log_el = float(value - n * mpmath.log(n))
        weights = [float(1 / (n * mixture)) for mixture in mixtures]
        return [float(v) for v in beta], weights, log_el, errors


FAR_OUT = np.r_[np.random.default_rng(3).normal(0.5, 1, 30), 1e9]
CENTRED = np.random.default_rng(3).normal(size=200)
CENTRED -= CENTRED.mean()
CASES = {
    "plain": ([np.random.default_rng(i).normal(i / 3, 1 + i / 5, 40 + 5 * i) for i in range(3)], quadratic),
    "one row far out": ([np.random.default_rng(2).normal(size=30), FAR_OUT], lambda x: x[:, None]),
    "far from zero": ([1e6 + np.random.default_rng(i).normal(i / 2, 1, 30) for i in range(2)], quadratic),
    "nearly collinear": (
        [np.random.default_rng(i).normal(i / 2, 1, 30) for i in range(2)],
        lambda x: np.c_[x, x + 1e-7 * x**2],
    ),
    "nearly separated": ([np.array([0, 1, 2, 3 + 1e-6]), np.array([3.0, 4, 5])], lambda x: x[:, None]),
    "overlap by 1e-7": ([np.array([0, 1, 2, 3 + 1e-7]), np.array([3.0, 4, 5])], lambda x: x[:, None]),
    "mostly zero": (
        [np.random.default_rng(i).normal(i / 2, 1, 40) for i in range(2)],
        lambda x: np.c_[x, np.maximum(x - 1, 0)],
    ),
    "nearly the same": ([CENTRED, CENTRED + 1e-6], lambda x: x[:, None]),
    "very different sizes": (
        [np.random.default_rng(1).normal(size=5), np.random.default_rng(2).normal(0.3, 1, 200)],
        lambda x: x[:, None],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_against_fifty_digits(case):
    samples, basis = CASES[case]
    fit = fit_drm(samples, basis)
    parameters, weights, log_el, errors = in_fifty_digits(samples, basis(np.concatenate(samples)), fit)
    found = [v for i in range(1, len(samples)) for v in (fit.gamma[i], *fit.xi[i])]
    np.testing.assert_allclose(found, parameters, rtol=1e-8)
    np.testing.assert_allclose(fit.weights, weights, rtol=1e-8, atol=1e-300)
    assert fit.log_el == pytest.approx(log_el, rel=1e-12)
    own = [v for i in range(1, len(samples)) for v in (fit.standard_errors.gamma[i], *fit.standard_errors.xi[i])]
    np.testing.assert_allclose(own, errors, rtol=1e-7)
    assert "nan" not in fit.summary()
    for i in range(len(samples)):
        assert fit.probabilities(i).sum() == pytest.approx(1, abs=1e-9)


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


def test_errors_of_distribution_functions_are_those_of_repeated_samples():
    """And intervals of quantiles hold the true ones as often as they say."""
    random = np.random.default_rng(4)
    points, levels = np.array([-0.5, 0.3, 1.2]), np.array([0.25, 0.5, 0.9])
    true = stats.norm.ppf(levels, 0.5, 1.3)
    found, errors, held = [], [], np.zeros(3)
    for _ in range(300):
        drawn = [random.normal(0, 1, 60), random.normal(0.5, 1.3, 45), random.normal(-0.4, 0.8, 50)]
        fit = fit_drm(drawn, quadratic, reference=2)
        found.append(fit.cdf(1, points))
        errors.append(fit.cdf_error(1, points))
        lower, upper = fit.quantile_interval(1, levels)
        held += (lower <= true) & (true <= upper)
    np.testing.assert_allclose(np.std(found, axis=0), np.mean(errors, axis=0), rtol=0.15)
    assert (np.abs(held / 300 - 0.95) < 0.04).all()


def test_the_error_of_a_mass_is_its_binomial_one_where_nothing_is_borrowed():
    """Two values and a basis that tells them apart: F is the empirical one."""
    first, second = np.repeat([0.0, 1.0], [30, 10]), np.repeat([0.0, 1.0], [12, 28])
    fit = fit_drm([first, second], basis=lambda x: x)
    np.testing.assert_allclose(fit.cdf(0, 0.5), 0.75, rtol=1e-12)
    np.testing.assert_allclose(fit.cdf_error(0, 0.5), np.sqrt(0.75 * 0.25 / 40), rtol=1e-9)
    np.testing.assert_allclose(fit.cdf_error(1, [0.5]), [np.sqrt(0.3 * 0.7 / 40)], rtol=1e-9)
    np.testing.assert_allclose(fit.cdf_error(1, [-1.0, 2.0]), 0, atol=1e-9)
    assert np.isnan(fit.cdf_error(1, np.nan))


def test_equal_samples_have_a_normaliser_without_error():
    """SE(γ) would be a difference of two figures around 2 / n."""
    x = np.arange(-2.0, 3.0)
    assert (fit_drm([x, x, x], basis=lambda x: x).standard_errors.gamma < 1e-15).all()


def test_some_samples_may_be_equal():
    random = np.random.default_rng(5)
    p = []
    for _ in range(300):
        drawn = [random.normal(0.9, 1, 60), random.normal(0, 1, 50), random.normal(0, 1, 70)]
        p.append(fit_drm(drawn, quadratic).test_equal([2, 1]))
    assert stats.kstest([test.p_value for test in p], "uniform").pvalue > 0.001
    assert {test.degrees_of_freedom for test in p} == {2}
    fit = fit_drm(drawn, quadratic)
    assert fit.test_equal([0, 1]).p_value < 1e-3
    assert fit.test_equal([0, 1, 2]) == fit.test_equal()
    for wrong in ([0], [0, 0], [1, 3]):
        with pytest.raises(FedSPMError, match=r"two samples|no sample 3"):
            fit.test_equal(wrong)


def test_the_log_of_a_ratio_does_not_overflow(fit):
    far = np.array([1e5])
    with np.errstate(over="ignore"):
        assert np.isinf(fit.density_ratio(far)).any()
    expected = fit.gamma + fit.xi @ [1e5, 1e10]
    np.testing.assert_allclose(fit.log_density_ratio(far)[0], expected, rtol=1e-9)


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
    tail = [np.random.default_rng(13).normal(0.2 * i, 1, 80) for i in range(3)]
    with pytest.raises(Separated):  # by a column that is zero for most
        fit_drm([tail[0].clip(max=2), *tail[1:]], basis=lambda x: np.c_[x, np.maximum(x - 1, 0), np.maximum(x - 2, 0)])
    with pytest.raises(Separated):  # whole numbers that a slanted line tells apart, some of them on it
        fit_drm([[[1, 1], [1, 0], [0, 0], [0, 1]], [[2, 1], [1, 1], [2, 0], [1, 0]]], basis=lambda x: x)
    fit = fit_drm([np.r_[low, 1.001], np.r_[high, 0.999]], basis=lambda x: x)
    assert fit.xi[1, 0] > 30
    assert fit.probabilities(1).sum() == pytest.approx(1, abs=1e-9)


def test_many_samples_far_apart_are_refused_without_a_table_of_all_pairs(monkeypatch):
    monkeypatch.setattr("fedspm.likelihood.dual._separated", None)
    random = np.random.default_rng(6)
    apart = [random.normal(3 * i, 0.1, size=(200, 1)) for i in range(12)]
    with pytest.raises(Separated):
        fit_drm(apart, basis=lambda x: np.c_[x, x**2])
    z, sample, beta = np.array([[1.0, 1e8], [1.0, -1e8]]), np.array([0, 1]), np.array([[0.0, -1.0]])
    for lead, certain in ((1e-3, True), (1e-9, False), (-1.0, False)):  # the second may be rounding of 1e8
        assert _all_at_home(z, sample, beta, np.array([[lead, 0.0], [0.0, lead]])) == certain


@pytest.mark.parametrize(
    ("basis", "sentence"),
    [
        (lambda x: np.c_[x, np.ones(len(x))], "column 1 of the basis is constant"),
        (lambda x: np.c_[x, 2 * x + 1], "column 1 of the basis depends"),
        (lambda x: np.full(len(x), np.nan), "not finite"),
        (lambda x: x[:3], "expected"),
        (lambda x: x[:, None] ** np.arange(1, 200), "too many for 155 rows"),
        (lambda x: np.empty((len(x), 0)), "expected"),
        (lambda x: ["a"] * len(x), "does not hold numbers"),
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
        ([samples[0], ["a", "b"]], "sample 1 does not hold numbers"),
        ([samples[0], [[1.0], [1.0, 2.0]]], "sample 1 does not hold numbers"),
        ([samples[0], torch.ones(3, requires_grad=True)], "sample 1 does not hold numbers.*detach"),
    ):
        with pytest.raises(FedSPMError, match=sentence):
            fit_drm(wrong, quadratic)
    for wrong in (3, -1):
        with pytest.raises(FedSPMError, match="reference"):
            fit_drm(samples, quadratic, reference=wrong)


def test_the_summary_can_be_read(fit):
    text = fit.summary()
    for word in ("3 samples (60, 45, 50 rows)", "std. error", "1  gamma", "2  xi_2", "4 degrees of freedom"):
        assert word in text
    assert max(map(len, text.splitlines())) < 110


def moved_and_centred(offset, size=200):
    """Two samples at an offset, and the same numbers, rounded as they are there, without it."""
    random = np.random.default_rng(0)
    moved = [offset + random.normal(0, 1, size), offset + random.normal(0.5, 1.3, size)]
    return moved, [x - offset for x in moved]


@pytest.mark.parametrize("offset", [1e8, 1e9])
def test_a_basis_that_has_lost_its_digits_is_refused(offset):
    """At 1e9 the values of x² are 128 apart: what they say beside x is gone, and ξ was −.000226 for .238."""
    moved, centred = moved_and_centred(offset)
    with pytest.raises(FedSPMError, match=r"column \d of the basis has lost its digits.*centre the columns: subtract"):
        fit_drm(moved, quadratic)
    assert fit_drm(centred, quadratic).xi[1, 1] == pytest.approx(0.206, abs=0.01)
    alone = fit_drm(moved, lambda x: x[:, None])  # x alone still has them
    np.testing.assert_allclose(alone.xi, fit_drm(centred, lambda x: x[:, None]).xi, rtol=1e-6)


@pytest.mark.parametrize("offset", [1e6, 3e6])
def test_a_basis_with_few_digits_left_gets_a_warning_and_is_nearly_right(offset):
    moved, centred = moved_and_centred(offset)
    with pytest.warns(UserWarning, match=r"column \d of the basis has few digits left.*centre the columns: subtract"):
        found = fit_drm(moved, quadratic)
    assert found.xi[1, 1] == pytest.approx(fit_drm(centred, quadratic).xi[1, 1], rel=1e-3)


def years(random):
    return [random.uniform(1990, 2010, 200), random.uniform(1995, 2020, 200)]


@pytest.mark.parametrize(
    ("samples", "offset"),
    [
        (moved_and_centred(1e3)[0], 1e3),
        (moved_and_centred(1e5)[0], 1e5),
        (years(np.random.default_rng(0)), 2005),
        ([np.floor(x) for x in years(np.random.default_rng(1))], 2005),
        ([np.floor(x) + 1e7 for x in years(np.random.default_rng(2))], 1e7 + 2005),  # x² is still exact
        ([1e-9 * x for x in years(np.random.default_rng(3))], 2005e-9),
    ],
    ids=["1e3", "1e5", "years", "whole years", "large whole numbers", "small units"],
)
def test_a_basis_that_has_its_digits_is_fitted_without_a_word(samples, offset):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_drm(samples, quadratic)
        centred = fit_drm([x - offset for x in samples], quadratic)
    assert found.xi[1, 1] == pytest.approx(centred.xi[1, 1], rel=1e-6)


@pytest.mark.parametrize("offset", [2e3, 1e4, 1e5])
def test_a_basis_far_from_zero_has_the_same_errors(samples, fit, offset):
    far = fit_drm([x + offset for x in samples], quadratic)
    np.testing.assert_allclose(far.standard_errors.xi[:, 1], fit.standard_errors.xi[:, 1], rtol=1e-4)
    assert far.log_el == pytest.approx(fit.log_el, rel=1e-6)
    assert far.probabilities(2).sum() == pytest.approx(1, abs=1e-10)


def test_a_point_may_be_a_vector():
    random = np.random.default_rng(3)
    fit = fit_drm([random.normal(size=(40, 3)), random.normal(0.4, 1, size=(40, 3))], basis=lambda x: x)
    point = np.array([1.0, 2.0, -1.0])
    np.testing.assert_array_equal(fit.density_ratio(point), fit.density_ratio(point[None]))
    assert fit.density_ratio(point)[0, 1] == pytest.approx(np.exp(fit.gamma[1] + fit.xi[1] @ point))
    for wrong in (0.5, np.ones(2), np.ones((4, 2))):
        with pytest.raises(FedSPMError, match="expected"):
            fit.density_ratio(wrong)


def test_quantiles_in_the_tails():
    """Two samples far apart: each has mass of 10⁻¹³ and less where the other is."""
    random = np.random.default_rng(0)
    fit = fit_drm([random.normal(0, 1, 80), random.normal(4, 1, 80)], basis=lambda x: x)
    values, mass = np.sort(fit.pooled), fit.probabilities(1)[np.argsort(fit.pooled)]
    below = np.cumsum(mass)
    assert below[0] < 1e-9
    for level in (1e-13, 1e-9, 0.5):
        assert fit.quantile(1, level) == values[np.searchsorted(below, level)]
    assert fit.quantile(0, 1.0) == values[-1]


def test_single_points(fit):
    assert fit.density_ratio(0.5).shape == (1, 3)
    assert np.isnan(fit.cdf(0, np.nan))
