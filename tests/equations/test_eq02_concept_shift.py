"""eq. 2: P_ic(k | x) ∝ exp(α_ikc + β_ikcᵀ g_c(x))"""

import numpy as np
import pytest
import torch

from fedspm.mixture.model import log_likelihood


@pytest.mark.parametrize("encoders", [1, 3], ids=["1x", "cx"])
def test_eq02_concept_shift(draw, encoders):
    n, components, classes, d = 5, 3, 4, 6
    weight = torch.randn(components, classes, d, generator=draw)
    bias = torch.randn(components, classes, generator=draw)
    features = torch.randn(n, encoders, d, generator=draw)

    expected = np.zeros((n, components, classes))
    for j in range(n):
        for c in range(components):
            g = features[j, c if encoders > 1 else 0].numpy()
            unnormalised = [np.exp(bias[c, k].item() + weight[c, k].numpy() @ g) for k in range(classes)]
            for k in range(classes):
                expected[j, c, k] = unnormalised[k] / sum(unnormalised)

    np.testing.assert_allclose(log_likelihood(weight, bias, features).exp(), expected, rtol=2e-5)
