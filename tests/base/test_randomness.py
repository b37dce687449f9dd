"""Noise that follows from a secret: normal, the same for the same key, and another for every other one."""

import numpy as np
from scipy.stats import kstest, norm

from fedspm.base.randomness import secret_normal


def test_draws_are_normal_to_the_tails():
    found = secret_normal(400_000, "secret", 1)
    assert kstest(found, "norm").pvalue > 0.001
    for far in (3.0, 4.0):
        expected = 400_000 * 2 * norm.sf(far)
        assert abs((np.abs(found) > far).sum() - expected) < 5 * expected**0.5
    assert abs((found > 0).mean() - 0.5) < 5 * 0.5 / 400_000**0.5


def test_a_key_is_a_stream_and_every_part_of_it_matters():
    key = ("secret", 0, "north", 3, "update")
    one = secret_normal(1000, *key)
    assert np.array_equal(one, secret_normal(1000, *key))
    assert np.array_equal(one[:10], secret_normal(10, *key))
    for i, other in enumerate(("Secret", 1, "south", 4, "expect")):
        changed = secret_normal(1000, *key[:i], other, *key[i + 1 :])
        assert abs(np.corrcoef(one, changed)[0, 1]) < 0.2
    assert not np.array_equal(one, secret_normal(1000, "secret", "0", "north", 3, "update"))
