"""The profile log-EL, Q₂ and Q̃₂: their gradients, and what the paper proves of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspm.base.errors import FedSPMError
from fedspm.likelihood import Infeasible, fit_drm, solve_multipliers
from fedspm.likelihood.profile import (
    accumulation_factors,
    exact_q2,
    gauge_shift,
    log_posterior,
    profile_log_el,
    surrogate_q2,
    total_responsibilities,
)


class Case:
    """Rows of m clients with C components each; any tilts, and the γ that some positive weights normalise them with."""

    def __init__(self, seed, m=3, components=2, n=60, tilt=0.4):
        random = np.random.default_rng(seed)
        self.client = np.sort(random.integers(0, m, n))
        self.client[:m] = range(m)
        self.features = random.normal(size=(n, 2))
        self.xi = tilt * random.normal(size=(m, components, 2))
        self.gamma = self.normaliser(random, self.xi)
        self.log_mixing = np.log(random.dirichlet(np.full(components, 3), size=m))
        self.log_likelihood = np.log(random.uniform(0.05, 0.95, size=(n, components)))
        self.w = np.exp(self.posterior(self.log_ratio()))

    def log_ratio(self, gamma=None, xi=None):
        return np.einsum("nd,mcd->nmc", self.features, self.xi if xi is None else xi) + (
            self.gamma if gamma is None else gamma
        )

    def normaliser(self, random, xi):
        """γ with which some positive weights satisfy eq. 4: a solution of eq. 6 exists."""
        some = random.dirichlet(np.full(len(self.client), 5))
        return -np.log(np.einsum("n,nmc->mc", some, np.exp(self.log_ratio(np.zeros(xi.shape[:2]), xi))))

    def posterior(self, log_ratio):
        return log_posterior(log_ratio, self.client, self.log_mixing, self.log_likelihood)

    def profile(self, log_ratio):
        return profile_log_el(log_ratio, self.client, self.log_mixing, self.log_likelihood)


@pytest.fixture(params=range(3))
def case(request):
    return Case(request.param)


@pytest.mark.parametrize("which", ["profile", "exact", "surrogate"])
def test_gradients_are_those_of_finite_differences(case, which):
    objective = {
        "profile": case.profile,
        "exact": lambda log_ratio: exact_q2(log_ratio, case.client, case.w),
        "surrogate": lambda log_ratio: surrogate_q2(log_ratio, case.client, case.w),
    }[which]
    here = objective(case.log_ratio())
    random = np.random.default_rng(1)
    for _ in range(4):  # along random directions of γ and ξ
        dgamma, dxi = random.normal(size=case.gamma.shape), random.normal(size=case.xi.shape)
        change = case.log_ratio(dgamma, dxi)
        h = 2e-5
        far, near = (
            (objective(case.log_ratio() + k * h * change).value - objective(case.log_ratio() - k * h * change).value)
            for k in (2, 1)
        )
        assert (here.pull * change).sum() == pytest.approx((8 * near - far) / (12 * h), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("huge", [700.0, 740.0, 2000.0])
def test_the_pull_is_right_where_a_weight_is_too_small_for_a_number(case, huge):
    """Σ_j pull on γ_ic = τ_ic − n λ_ic, also of a row with a ratio of e²⁰⁰⁰."""
    log_ratio = case.log_ratio()
    log_ratio[0, 1, 1] = huge
    found = exact_q2(log_ratio, case.client, case.w)
    tau = total_responsibilities(case.client, case.w, log_ratio.shape[1])
    multipliers = found.solution.multipliers.reshape(tau.shape)
    np.testing.assert_allclose(found.pull.sum(0), tau - len(case.client) * multipliers, atol=1e-6)


def test_the_profile_is_the_largest_log_el_under_the_constraints(case):
    """Any other weights that satisfy eq. 4 give less."""
    log_ratio = case.log_ratio()
    found = case.profile(log_ratio)
    g = np.expm1(log_ratio.reshape(len(log_ratio), -1))
    null = np.linalg.svd(np.c_[np.ones(len(g)), g].T)[2][g.shape[1] + 1 :]
    for direction in null[:5]:
        for size in (1e-3, -1e-3):
            other = found.solution.weights + size * direction / np.abs(direction / found.solution.weights).max()
            assert (other > 0).all()
            assert np.log(other).sum() < found.solution.sum_log_weights


def test_em_gradient_bridge(case):
    """∇_φ F(ζ) = ∇ f(φ) where w is the posterior at ζ: the two pulls are the same, row by row."""
    log_ratio = case.log_ratio()
    np.testing.assert_allclose(
        case.profile(log_ratio).pull, exact_q2(log_ratio, case.client, case.w).pull, rtol=1e-10, atol=1e-13
    )


def test_the_elbo_touches_the_profile_at_the_current_parameters_and_lies_below_elsewhere(case):
    def elbo(log_ratio, log_mixing, log_likelihood):
        q1, q3 = (case.w * log_likelihood).sum(), (case.w * log_mixing[case.client]).sum()
        entropy = -(case.w * np.log(case.w)).sum()
        n = len(case.client)
        return q1 + exact_q2(log_ratio, case.client, case.w).value - n * np.log(n) + q3 + entropy

    here = elbo(case.log_ratio(), case.log_mixing, case.log_likelihood)
    assert here == pytest.approx(case.profile(case.log_ratio()).value, rel=1e-12)
    random = np.random.default_rng(2)
    for _ in range(5):
        likelihood = case.log_likelihood + 0.3 * random.normal(size=case.log_likelihood.shape)
        mixing = np.log(random.dirichlet([3, 3], size=3))
        xi = case.xi + 0.1 * random.normal(size=case.xi.shape)
        log_ratio = case.log_ratio(case.normaliser(random, xi), xi)
        profile = profile_log_el(log_ratio, case.client, mixing, likelihood).value
        assert elbo(log_ratio, mixing, likelihood) <= profile + 1e-9


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), tilt=st.floats(0.05, 1.0))
def test_q2_is_at_most_the_surrogate_plus_n_log_n(seed, tilt):
    case = Case(seed, tilt=tilt)
    log_ratio, n = case.log_ratio(), len(case.client)
    try:
        exact = exact_q2(log_ratio, case.client, case.w).value
    except Infeasible:
        return
    bound = surrogate_q2(log_ratio, case.client, case.w).value + n * np.log(n)
    assert exact <= bound + 1e-8 * abs(bound)


def maximised(case):
    """γ and ξ at the maximum of Q̃₂, by Newton's method; the information is singular along the gauge."""
    z = np.c_[np.ones(len(case.client)), case.features]
    beta = np.concatenate([case.gamma[..., None], case.xi], axis=2)
    own = np.zeros((len(z), *case.gamma.shape))
    own[np.arange(len(z)), case.client] = case.w
    for _ in range(30):
        pull = surrogate_q2(case.log_ratio(beta[..., 0], beta[..., 1:]), case.client, case.w).pull
        share = (own - pull).reshape(len(z), -1)  # of each component in each row
        blocks = np.einsum("na,ab,nd,ne->adbe", share, np.eye(6), z, z) - np.einsum(
            "na,nb,nd,ne->adbe", share, share, z, z
        )
        gradient = np.einsum("nmc,nd->mcd", pull, z).ravel()
        beta = beta + np.linalg.lstsq(blocks.reshape(18, 18), gradient, rcond=1e-10)[0].reshape(beta.shape)
    gamma, xi = beta[..., 0], beta[..., 1:]
    return gamma + gauge_shift(case.log_ratio(gamma, xi), case.client, case.w), xi


def test_at_a_critical_point_the_multipliers_are_tau_over_n_and_the_bound_is_an_equality(case):
    gamma, xi = maximised(case)
    log_ratio, n = case.log_ratio(gamma, xi), len(case.client)
    exact, surrogate = exact_q2(log_ratio, case.client, case.w), surrogate_q2(log_ratio, case.client, case.w)
    tau = total_responsibilities(case.client, case.w, 3)
    np.testing.assert_allclose(exact.solution.multipliers, tau.ravel() / n, rtol=1e-8)
    assert exact.value == pytest.approx(surrogate.value + n * np.log(n), rel=1e-9)
    gradient = np.einsum("nmc,nd->mcd", exact.pull, case.features)
    np.testing.assert_allclose(gradient, 0, atol=1e-8)
    np.testing.assert_allclose(exact.pull.sum(0), 0, atol=1e-8)


def test_an_em_step_that_lowers_nothing_does_not_lower_the_profile(case):
    before = case.profile(case.log_ratio()).value
    old = exact_q2(case.log_ratio(), case.client, case.w).value
    gamma, xi = maximised(case)
    log_ratio = case.log_ratio(gamma, xi)
    assert exact_q2(log_ratio, case.client, case.w).value >= old - 1e-9
    tau = total_responsibilities(case.client, case.w, 3)
    mixing = np.log(tau / tau.sum(1, keepdims=True))
    assert profile_log_el(log_ratio, case.client, mixing, case.log_likelihood).value >= before


def test_one_shift_of_every_gamma_changes_q2_but_not_the_surrogate_or_the_posterior(case):
    here, there = case.log_ratio(), case.log_ratio() + 1e-3
    assert surrogate_q2(there, case.client, case.w).value == pytest.approx(
        surrogate_q2(here, case.client, case.w).value, rel=1e-12
    )
    np.testing.assert_allclose(case.posterior(there), case.posterior(here), atol=1e-12)
    assert abs(exact_q2(there, case.client, case.w).value - exact_q2(here, case.client, case.w).value) > 1e-6
    shifts = [gauge_shift(log_ratio, case.client, case.w) for log_ratio in (here, there)]
    assert shifts[1] == pytest.approx(shifts[0] - 1e-3, abs=1e-12)


def test_with_one_component_a_classical_fit_is_the_maximum_of_the_profile():
    random = np.random.default_rng(0)
    samples = [random.normal(size=40), random.normal(0.5, 1.2, size=30)]
    fit = fit_drm(samples, basis=lambda x: x)
    client = np.repeat([0, 1], [40, 30])
    found = profile_log_el(fit.log_ratios[:, :, None], client, np.zeros((2, 1)), np.zeros((70, 1)))
    assert found.value == pytest.approx(fit.log_el, rel=1e-12)
    np.testing.assert_allclose(found.pull[:, 1].sum(0), 0, atol=1e-8)  # the reference stays where it is


def test_accumulation_factors():
    assert accumulation_factors(0.0, 15) == (15, 15)
    mu, steps = 0.9, 4
    each = [(1 - mu ** (steps - e)) / (1 - mu) for e in range(steps)]
    assert accumulation_factors(mu, steps) == pytest.approx((sum(each), sum(v**2 for v in each)))
    with pytest.raises(FedSPMError):
        accumulation_factors(1.0, 3)


def test_solutions_of_the_same_rows_agree(case):
    log_ratio = case.log_ratio()
    alone = solve_multipliers(log_ratio=log_ratio.reshape(len(log_ratio), -1))
    np.testing.assert_allclose(case.profile(log_ratio).solution.weights, alone.weights)
