"""What must hold for any parameters."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspm.mixture.em import log_responsibilities
from fedspm.mixture.routing import class_probabilities, log_client_scores, log_component_posterior

seeds = st.integers(0, 10_000)


def drawn(seed, *shape, scale=5.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(seeds, st.integers(1, 5), st.booleans())
def test_responsibilities_sum_to_one_even_with_a_dead_component(seed, components, dead):
    mixing = torch.softmax(drawn(seed, components), 0)
    if dead and components > 1:
        mixing[0] = 0
    w = log_responsibilities(mixing.log(), drawn(seed + 1, 9, components), drawn(seed + 2, 9, components)).exp()
    assert torch.allclose(w.sum(1), torch.ones(9), atol=1e-5)
    assert not (dead and components > 1) or (w[:, 0] == 0).all()


@given(seeds, st.permutations(range(4)), st.permutations(range(3)))
def test_routing_does_not_care_how_clients_or_components_are_numbered(seed, clients, components):
    prior, mixing = drawn(seed, 4).log_softmax(0), drawn(seed + 1, 4, 3).log_softmax(1)
    ratio = drawn(seed + 2, 7, 4, 3)
    scores = log_client_scores(prior, mixing, ratio)
    again = log_client_scores(prior[clients], mixing[clients][:, components], ratio[:, clients][:, :, components])
    assert torch.allclose(scores[:, clients], again, atol=1e-4)


@given(seeds, st.permutations(range(3)))
def test_prediction_does_not_care_how_components_are_numbered(seed, order):
    mixing, ratio = drawn(seed, 3).log_softmax(0), drawn(seed + 1, 7, 3)
    likelihood = drawn(seed + 2, 7, 3, 5).log_softmax(2)
    p = class_probabilities(log_component_posterior(mixing, ratio), likelihood)
    q = class_probabilities(log_component_posterior(mixing[order], ratio[:, order]), likelihood[:, order])
    assert torch.allclose(p, q, atol=1e-5)
    assert torch.allclose(p.sum(1), torch.ones(7), atol=1e-5)


@given(seeds)
def test_adding_a_constant_to_every_gamma_changes_neither_routing_nor_responsibilities(seed):
    prior, mixing, ratio = drawn(seed, 4).log_softmax(0), drawn(seed + 1, 4, 3).log_softmax(1), drawn(seed + 2, 7, 4, 3)
    scores = log_client_scores(prior, mixing, ratio).softmax(1)
    shifted = log_client_scores(prior, mixing, ratio + 3.7).softmax(1)
    assert torch.allclose(scores, shifted, atol=1e-4)
