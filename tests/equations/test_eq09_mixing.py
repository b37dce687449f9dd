"""eq. 9: π_ic = n_i⁻¹ Σ_j w_ijc, which maximises Q₃ = Σ_jc w_ijc log π_ic on the simplex."""

import numpy as np
import torch

from fedspm.mixture.em import mixing_weights


def test_eq09_mixing(draw):
    w = torch.rand(50, 3, generator=draw)
    w /= w.sum(1, keepdim=True)
    expected = [sum(w[j, c].item() for j in range(50)) / 50 for c in range(3)]
    found = mixing_weights(w.sum(0), 50)
    np.testing.assert_allclose(found, expected, rtol=1e-5)

    def q3(mixing):
        return (w.numpy() * np.log(mixing)).sum()

    random = np.random.default_rng(0)
    assert all(q3(random.dirichlet(np.ones(3))) <= q3(found.numpy()) for _ in range(200))
