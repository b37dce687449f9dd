"""Eq. 6 against fifty-digit arithmetic, and where it has no solution."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspm.base.errors import FedSPMError
from fedspm.likelihood import Infeasible, solve_multipliers


def reference(rows, start, exact=mpmath.mpf):
    """λ, weights and Σ log weights by Newton's method in fifty digits, from a point near the solution.

    `exact` makes g of an entry.
    """
    with mpmath.workdps(50):
        g = mpmath.matrix([[exact(mpmath.mpf(float(value))) for value in row] for row in rows])
        x = mpmath.matrix(list(map(float, start)))
        for _ in range(12):
            inner = [1 + value for value in g * x]
            tilted = mpmath.matrix([[g[j, c] / inner[j] for c in range(g.cols)] for j in range(g.rows)])
            x += mpmath.lu_solve(tilted.T * tilted, tilted.T * mpmath.ones(g.rows, 1))
        weights = [1 / (g.rows * value) for value in inner]
        return (
            np.array([float(value) for value in x]),
            np.array([float(value) for value in weights]),
            float(sum(mpmath.log(value) for value in weights)),
        )


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 300.0])
def test_against_fifty_digits(scale):
    log_ratio = np.random.default_rng(5).uniform(-scale, scale, size=(40, 3))
    found = solve_multipliers(log_ratio=log_ratio)
    multipliers, weights, log_weights = reference(log_ratio, found.multipliers, mpmath.expm1)
    np.testing.assert_allclose(found.multipliers, multipliers, rtol=1e-8)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-8)
    assert found.sum_log_weights == pytest.approx(log_weights, rel=1e-9)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), n=st.integers(12, 60), q=st.integers(1, 5), spread=st.floats(0.01, 50))
def test_weights_sum_to_one_and_satisfy_every_constraint_or_a_direction_separates(seed, n, q, spread):
    log_ratio = spread * np.random.default_rng(seed).normal(size=(n, q))
    scaled = np.expm1(log_ratio) / np.exp(log_ratio.max(1, keepdims=True).clip(min=0))
    direction = np.zeros(q)
    try:
        found = solve_multipliers(log_ratio=log_ratio)
    except Infeasible as error:
        direction = error.direction
    if direction.any():
        assert (scaled @ direction >= -1e-9).all()
        assert (scaled @ direction).max() > 0
    else:
        assert found.weights.sum() == pytest.approx(1, abs=1e-9)
        assert (found.weights >= 0).all()
        np.testing.assert_allclose(found.weights @ np.exp(log_ratio), 1, atol=1e-8)


def test_g_and_log_ratio_agree_and_multipliers_may_be_negative():
    log_ratio = np.random.default_rng(0).normal(size=(200, 3)) - [0.0, 0.4, 0.0]
    one, other = solve_multipliers(log_ratio=log_ratio), solve_multipliers(np.expm1(log_ratio))
    np.testing.assert_allclose(one.multipliers, other.multipliers, rtol=1e-12)
    assert solve_multipliers(np.random.default_rng(1).normal(size=(50, 2)) - 0.2).multipliers.min() < 0


@pytest.mark.parametrize("n", [80, 5000])
def test_dependent_columns_give_the_same_weights_and_the_shortest_multipliers(n):
    log_ratio = np.random.default_rng(2).normal(size=(n, 2))
    alone = solve_multipliers(log_ratio=log_ratio)
    both = solve_multipliers(log_ratio=np.c_[log_ratio, log_ratio[:, 0], np.zeros(n)])
    np.testing.assert_allclose(both.weights, alone.weights, rtol=1e-10)
    a, b = alone.multipliers
    np.testing.assert_allclose(both.multipliers, [a / 2, b, a / 2, 0], rtol=1e-9, atol=1e-12)


def test_all_tilts_zero_is_the_empirical_distribution():
    found = solve_multipliers(log_ratio=np.zeros((7, 3)))
    np.testing.assert_allclose(found.weights, 1 / 7)
    np.testing.assert_allclose(found.multipliers, 0)


@pytest.mark.parametrize("case", ["one side", "a face", "one row"])
def test_no_solution_raises_with_a_direction(case):
    g = np.random.default_rng(3).normal(size=(60, 3))
    if case == "one side":
        g[:, 1] = np.abs(g[:, 1]) + 0.1
    if case == "a face":  # zero is in the hull, but only on its boundary
        g[:, 1] = np.abs(g[:, 1])
        g[:30, 1] = 0
    if case == "one row":
        g = g[:1]
    with pytest.raises(Infeasible) as caught:
        solve_multipliers(g)
    along = g @ caught.value.direction
    assert along.min() >= -1e-9
    assert along.max() > 0


@pytest.mark.parametrize(
    "g",
    [  # zero is on an oblique face: rounding must not turn it into a solution with λ of 10¹⁵
        [[0, 0], [-2, 2], [-1, 1]],
        [[1, 1], [-1, -1], [1, -1], [2, -2], [0.5, 0.5]],
        np.c_[np.arange(-5.0, 6), np.arange(-5.0, 6) + (np.arange(11) == 3)],
    ],
)
def test_zero_on_an_oblique_face_has_no_solution(g):
    with pytest.raises(Infeasible) as caught:
        solve_multipliers(g)
    along = np.array(g) @ caught.value.direction
    assert along.min() >= -1e-14
    assert along.max() > 0.1


@pytest.mark.parametrize(
    "g",
    [  # the usual first point lies on the edge of what is allowed: a row adds up to −(q + 1)
        [[-2, 2], [-2, -1], [2, 0], [2, -2], [2, 1], [0, 0], [0, -2], [-1, 0], [-2, 0], [-1, 1]],
        [[-2, 2], [-2, -1], [2, 0], [2, -2], [2, 1], [-1, -2], [-1, 0], [1, 1]],
    ],
)
def test_small_whole_numbers(g):
    found = solve_multipliers(g)
    multipliers, _, _ = reference(g, found.multipliers)
    np.testing.assert_allclose(found.multipliers, multipliers, rtol=1e-12)


def test_what_the_constraints_leave_open_is_no_direction_of_escape():
    """λ may move along (1, 0, 1) as it likes; the weights are all a quarter."""
    g = [[0, 0, 0], [0, -1, 0], [1, 0, -1], [-1, 1, 1]]
    found = solve_multipliers(g)
    np.testing.assert_allclose(found.weights, 0.25, rtol=1e-14)
    np.testing.assert_allclose(found.multipliers, 0, atol=1e-14)


@settings(max_examples=150)
@given(
    st.integers(1, 3).flatmap(
        lambda q: st.lists(st.lists(st.integers(-2, 2), min_size=q, max_size=q), min_size=q + 1, max_size=12)
    )
)
def test_whole_numbers_are_solved_or_separated_exactly(g):
    """A direction with small whole entries separates, or none does and the weights are right."""
    g = np.array(g)
    try:
        found = solve_multipliers(g)
    except Infeasible as error:
        along = g @ error.direction
        assert along.min() >= -1e-13
        assert along.max() > 1e-3
        return
    np.testing.assert_allclose(found.weights @ g, 0, atol=1e-13)
    assert found.weights.sum() == pytest.approx(1, abs=1e-13)
    assert found.weights.min() > 1e-6  # on a face some would vanish


@pytest.mark.parametrize("inside", [1e-4, 1e-8, 1e-12])
def test_zero_inside_by_a_hair_is_solved_to_the_last_digits(inside):
    """Four rows hold the far side. The column in units of `inside` for them is the same system with moderate numbers
    in fifty digits."""
    random = np.random.default_rng(2)
    g = np.c_[random.uniform(0.5, 1, 40), random.normal(size=40)]
    g[:4, 0] = -inside * random.uniform(0.5, 1, 4)
    g[:4, 1] = [-1.0, -0.5, 0.5, 1.0]
    found = solve_multipliers(g)
    multipliers, weights, _ = reference(g, found.multipliers)
    np.testing.assert_allclose(found.multipliers, multipliers, rtol=1e-12)
    np.testing.assert_allclose(found.weights, weights, rtol=1e-12)


def test_zero_barely_inside_is_solved():
    """A thin hull: a single row holds the far side."""
    g = np.c_[np.abs(np.random.default_rng(4).normal(size=200)) + 1, np.random.default_rng(5).normal(size=200)]
    g[0] = [-1e-3, 0]
    found = solve_multipliers(g)
    np.testing.assert_allclose(found.weights @ g, 0, atol=1e-9)
    assert found.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"g": [[np.nan]]},
        {"log_ratio": [[np.inf]]},
        {"log_ratio": [[1e300], [-1e300]]},
        {"g": np.zeros((0, 2))},
        {"g": [["a"]]},
        {"g": [[1.0], [1.0, 2.0]]},
        {"g": [[1j], [-1j]]},
    ],
)
def test_bad_input_gets_a_sentence(wrong):
    with pytest.raises(FedSPMError):
        solve_multipliers(**wrong)


def test_fifty_thousand_rows_and_24_columns_take_few_iterations():
    """0.21 to 0.42 s on a quiet core; a test that shares it can only count."""
    random = np.random.default_rng(0)
    tilts, x = random.normal(size=(24, 4)), random.normal(size=(50_000, 4))
    log_ratio = 0.5 * (x @ tilts.T - (tilts**2).sum(1) / 2)
    found = solve_multipliers(log_ratio=log_ratio)
    assert found.residual < 1e-9
    assert found.iterations < 60


LONG = np.finfo(np.longdouble).eps < np.finfo(np.float64).eps


@pytest.mark.parametrize("apart", [1e-5, 1e-7, *([1e-8, 1e-9] if LONG else [])])
@pytest.mark.parametrize("seed", range(6))
def test_nearly_parallel_columns_are_solved(apart, seed):
    random = np.random.default_rng(seed)
    base = random.normal(size=(30, 2))
    g = np.c_[base, base + apart * random.normal(size=(30, 2))]
    found = solve_multipliers(g)
    assert found.weights.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(found.weights @ g, 0, atol=1e-9)
    assert found.weights.min() > 0


@pytest.mark.parametrize("q", [3, 24])
@pytest.mark.parametrize("largest", [50.0, 300.0, 1000.0])
def test_ratios_that_are_huge_in_a_row_each(q, largest):
    """Every column has ten rows in which it is huge; twenty rows have only ratios near zero."""
    log_ratio = np.full((10 * q + 20, q), -50.0)
    log_ratio[np.arange(10 * q), np.arange(10 * q) % q] = largest
    found = solve_multipliers(log_ratio=log_ratio)
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert found.iterations < 20
    np.testing.assert_allclose(found.multipliers, found.multipliers[0], rtol=1e-10)  # all columns are alike
    inner = 1 + found.multipliers[0] * (np.exp(-50.0) - 1) * q  # of the rows near zero
    np.testing.assert_allclose(found.weights[-20:], 1 / (len(log_ratio) * inner), rtol=1e-10)


@pytest.mark.parametrize("size", [1e-12, 1e8, 1e100, 1e200, 1e300])
def test_the_units_of_g_do_not_matter(size):
    g = np.random.default_rng(1).normal(size=(50, 3))
    one, other = solve_multipliers(g), solve_multipliers(size * g)
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-9)
    np.testing.assert_allclose(size * other.multipliers, one.multipliers, rtol=1e-8)
