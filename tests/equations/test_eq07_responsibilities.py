"""eq. 7: w_ijc ∝ P_ic(y_ij | x_ij) exp(γ_ic + ξ_icᵀ h_c(x_ij)) π_ic"""

import numpy as np
import torch

from fedspm.mixture.em import log_responsibilities
from fedspm.mixture.model import of_label


def test_eq07_responsibilities(draw):
    n, components, classes = 6, 3, 4
    mixing = torch.tensor([0.5, 0.3, 0.2])
    ratio = torch.randn(n, components, generator=draw)
    likelihood = torch.randn(n, components, classes, generator=draw).log_softmax(-1)
    y = torch.tensor([0, 3, 1, 2, 2, 0])

    expected = np.zeros((n, components))
    for j in range(n):
        for c in range(components):
            p = np.exp(likelihood[j, c, y[j]].item())
            expected[j, c] = p * np.exp(ratio[j, c].item()) * mixing[c].item()
        expected[j] /= expected[j].sum()

    found = log_responsibilities(mixing.log(), ratio, of_label(likelihood, y)).exp()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_dead_component_gets_nothing_and_makes_no_nan():
    mixing = torch.tensor([0.6, 0.4, 0.0])
    found = log_responsibilities(mixing.log(), torch.zeros(4, 3), torch.zeros(4, 3)).exp()
    np.testing.assert_allclose(found, [[0.6, 0.4, 0.0]] * 4, rtol=1e-6)
