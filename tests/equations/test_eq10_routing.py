"""eq. 10: i* = argmax ρ_i Σ_c π_ic exp(γ_ic + ξ_icᵀ h_c(x))"""

import numpy as np
import torch

from fedspm.mixture.routing import log_client_scores


def test_eq10_routing(draw):
    n, clients, components = 9, 4, 3
    prior = torch.tensor([0.4, 0.3, 0.2, 0.1])
    mixing = torch.rand(clients, components, generator=draw)
    mixing /= mixing.sum(1, keepdim=True)
    ratio = 2 * torch.randn(n, clients, components, generator=draw)

    expected = np.zeros((n, clients))
    for j in range(n):
        for i in range(clients):
            density = sum(mixing[i, c].item() * np.exp(ratio[j, i, c].item()) for c in range(components))
            expected[j, i] = prior[i].item() * density

    found = log_client_scores(prior.log(), mixing.log(), ratio)
    np.testing.assert_allclose(found.exp(), expected, rtol=1e-4)
    np.testing.assert_array_equal(found.argmax(1), expected.argmax(1))


def test_log_space_survives_what_exp_does_not():
    ratio = torch.tensor([[[900.0], [890.0]]])
    found = log_client_scores(torch.tensor([0.5, 0.5]).log(), torch.zeros(2, 1), ratio)
    np.testing.assert_allclose(torch.softmax(found, 1), [[1 / (1 + np.exp(-10)), 1 / (1 + np.exp(10))]], rtol=1e-4)
