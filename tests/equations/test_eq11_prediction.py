"""eq. 11: P_i(k | x) = Σ_c P_ic(k | x) P_i(c | x), with P_i(c | x) ∝ π_ic exp(γ_ic + ξ_icᵀ h_c(x))"""

import numpy as np
import torch

from fedspm.mixture.routing import class_probabilities, log_component_posterior


def test_eq11_prediction(draw):
    n, components, classes = 6, 3, 4
    mixing = torch.tensor([0.2, 0.5, 0.3])
    ratio = torch.randn(n, components, generator=draw)
    likelihood = torch.randn(n, components, classes, generator=draw).log_softmax(-1)

    expected = np.zeros((n, classes))
    for j in range(n):
        posterior = np.array([mixing[c].item() * np.exp(ratio[j, c].item()) for c in range(components)])
        posterior /= posterior.sum()
        for k in range(classes):
            expected[j, k] = sum(posterior[c] * np.exp(likelihood[j, c, k].item()) for c in range(components))

    found = class_probabilities(log_component_posterior(mixing.log(), ratio), likelihood)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
