"""The test that the basis suffices: by hand, by simulation, and what it refuses."""

import numpy as np
import pytest

from fedspm.base.errors import FedSPMError
from fedspm.likelihood import fit_drm, goodness_of_fit


def line(x):
    return x[:, None]


def parabola(x):
    return np.c_[x, x**2]


def test_the_statistic_is_the_largest_distance_of_distribution_functions():
    random = np.random.default_rng(3)
    samples = [random.integers(0, 6, 40), random.integers(1, 8, 25), random.integers(0, 8, 30)]  # many ties
    fit = fit_drm(samples, parabola)
    points = np.unique(np.concatenate(samples))
    alone = [[(sample <= point).mean() for point in points] for sample in samples]
    far = [np.sqrt(len(s)) * np.abs(fit.cdf(i, points) - alone[i]).max() for i, s in enumerate(samples)]
    found = goodness_of_fit(fit, draws=1)
    assert found.statistic == pytest.approx(max(far), rel=1e-12)
    assert (found.sample, found.coordinate) == (int(np.argmax(far)), 0)


def test_a_basis_that_does_not_suffice_is_found_out():
    random = np.random.default_rng(0)
    spread = [random.normal(0, 1, 80), random.normal(0, 2, 80)]
    assert goodness_of_fit(fit_drm(spread, line), draws=39).p_value == 1 / 40
    assert goodness_of_fit(fit_drm(spread, parabola), draws=39).p_value > 0.05


def test_the_coordinate_that_does_not_fit_is_named():
    random = np.random.default_rng(1)
    a, b, c = (random.normal(0, 1, (100, 3)) for _ in range(3))
    c[:, 1] *= 2.5
    found = goodness_of_fit(fit_drm([a, b, c], lambda x: x), draws=39)
    assert (found.sample, found.coordinate) == (2, 1)
    assert found.p_value == 1 / 40


def test_where_the_model_holds_p_values_are_spread_evenly():
    random = np.random.default_rng(2)
    found = []
    for repetition in range(200):
        fit = fit_drm([random.normal(0, 1, 50), random.normal(0.7, 1, 40)], line)
        found.append(goodness_of_fit(fit, draws=19, seed=repetition).p_value)
    assert 0.4 < np.mean(found) < 0.6
    assert np.mean(np.array(found) <= 0.1) < 0.2


def test_the_reference_does_not_matter_and_the_seed_decides():
    random = np.random.default_rng(4)
    samples = [random.normal(0, 1, 30), random.normal(1, 1, 40)]
    first, second = (goodness_of_fit(fit_drm(samples, line, reference=i), draws=19, seed=5) for i in (0, 1))
    assert first.statistic == pytest.approx(second.statistic, rel=1e-9)
    assert first.p_value == second.p_value
    assert first == goodness_of_fit(fit_drm(samples, line), draws=19, seed=5)


def test_samples_that_are_mostly_drawn_apart_are_refused():
    fit = fit_drm([np.array([0.0, 1.0, 2.1]), np.array([2.0, 3.0, 4.0])], line)
    with pytest.raises(FedSPMError, match=r"draws from the fitted model could not be fitted .* too small, or too far"):
        goodness_of_fit(fit, draws=19)


def test_a_model_that_cannot_be_wrong_is_not_refused():
    random = np.random.default_rng(39)
    samples = [(random.random(40) < share).astype(float) for share in (0.4, 0.6)]
    found = goodness_of_fit(fit_drm(samples, line), draws=19)
    assert found.statistic < 1e-12
    assert found.p_value == 1


@pytest.mark.parametrize(("how", "sentence"), [({"seed": -1}, "seed = -1"), ({"draws": 0}, "draws = 0")])
def test_what_to_draw_is_a_whole_number(how, sentence):
    fit = fit_drm([np.arange(5.0), np.arange(1.0, 7.0)], line)
    with pytest.raises(FedSPMError, match=f"{sentence} must be a whole number from"):
        goodness_of_fit(fit, **how)
