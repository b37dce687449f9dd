"""eq. 1: a client is a mixture, P_i = Σ_c π_ic P_ic, with z_ij drawn from π_i, in the constructed data."""

import numpy as np

from fedspm.data.heterogeneity import Heterogeneity, impose


def test_constructed_clients_are_mixtures_with_the_weights_that_were_drawn():
    images = np.zeros((40_000, 4, 4), np.uint8)
    labels = np.arange(40_000) % 10
    federation = impose(images, labels, list("abcdefghij"), Heterogeneity(clients=4), seed=3)
    for i, component in enumerate(federation.truth.train):
        share = component.double().mean().item()
        weight = federation.truth.mixing[i, 1].item()
        spread = np.sqrt(weight * (1 - weight) / len(component))
        assert abs(share - weight) < 4 * spread
