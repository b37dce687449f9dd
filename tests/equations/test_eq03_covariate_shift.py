"""eq. 3: dP_ic/dG(x) = exp(γ_ic + ξ_icᵀ h_c(x))"""

import numpy as np
import pytest
import torch

from fedspm.mixture.model import log_ratio


@pytest.mark.parametrize("encoders", [1, 3], ids=["1x", "cx"])
def test_eq03_covariate_shift(draw, encoders):
    n, clients, components, d = 5, 4, 3, 6
    xi = torch.randn(clients, components, d, generator=draw)
    gamma = torch.randn(clients, components, generator=draw)
    features = torch.randn(n, encoders, d, generator=draw)

    expected = np.zeros((n, clients, components))
    for j in range(n):
        for i in range(clients):
            for c in range(components):
                h = features[j, c if encoders > 1 else 0].numpy()
                expected[j, i, c] = gamma[i, c].item() + xi[i, c].numpy() @ h

    np.testing.assert_allclose(log_ratio(xi, gamma, features), expected, rtol=1e-4, atol=1e-5)
    one_client = log_ratio(xi[2], gamma[2], features)
    np.testing.assert_allclose(one_client, expected[:, 2], rtol=1e-4, atol=1e-5)
