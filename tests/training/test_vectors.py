"""Vectors train with default settings: a rate that suits images left them where they started."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedspm import FederatedClassifier, Federation
from fedspm.algorithms import algorithm_named
from fedspm.federated.task import Task
from small import small_settings


@pytest.fixture(scope="module")
def digits():
    """Handwritten digits as vectors, at three sites whose scanners differ."""
    x, y = load_digits(return_X_y=True)
    thirds = np.array_split(np.random.default_rng(100).permutation(len(x)), 3)
    sites = {f"site-{i}": ((1 + 0.2 * i) * x[rows] + 2 * i, y[rows]) for i, rows in enumerate(thirds)}
    return Federation.from_arrays(sites, test_fraction=0.3, seed=100)


@pytest.mark.parametrize("algorithm", ["fedspm", "feddrm", "fedavg"])
def test_thirty_rounds_with_default_settings_learn_digits(digits, algorithm):
    model = FederatedClassifier(algorithm, components=2, rounds=30, seed=100).fit(digits)
    assert model.evaluate(digits)["system_accuracy"] > 0.9  # FedSPM at a rate of 0.01: 0.4


def rate(shape=(6,), counts=(400, 300), **changes):
    settings = small_settings(**{"predictor": {"encoder": "auto", "momentum": 0.9, "steps": 10}} | changes)
    names = tuple(f"site-{i}" for i in range(len(counts)))
    return algorithm_named("fedavg")(settings, Task(shape, 2, names, counts)).learning_rate("predictor")


def test_a_row_pulls_equally_much_however_many_rounds_and_rows_there_are():
    visits = 10 * 128 / 350  # of a row in a round
    assert rate(rounds=60) * 60 * visits == pytest.approx(12)
    assert rate(rounds=200) * 200 * visits == pytest.approx(12)
    assert rate(rounds=20, horizon=60) == rate(rounds=60)
    assert rate(rounds=200, counts=(700, 700)) == pytest.approx(2 * rate(rounds=200))
    assert rate(rounds=60, counts=(100, 100)) == rate(rounds=60, counts=(20, 20))  # a batch is all of their rows
    assert rate(rounds=60) < rate(rounds=2) == rate(rounds=1) == 0.1  # the highest


def test_a_rate_that_is_set_and_that_of_images_stay_as_they_are():
    block = {"encoder": "auto", "momentum": 0.9, "steps": 10}
    assert rate(rounds=30, predictor=block | {"learning_rate": 0.02}) == 0.02
    assert rate(rounds=30, shape=(3, 8, 8)) == 0.01
    assert rate(rounds=30, predictor=block | {"steps": 0}) == 0.1  # nothing is descended
