"""The rules against slow loops that can be read beside the papers."""

import numpy as np
import pytest
import torch

from fedspm.base.errors import FedSPMError
from fedspm.federated.robust.krum import LIARS, multi_krum
from fedspm.federated.robust.median import weighted_median
from fedspm.federated.robust.rules import RULES, rule_of
from fedspm.federated.robust.trimmed import TRIMMED, trimmed_mean

CASES = [(seed, clients) for seed in range(6) for clients in (3, 5, 8)]


def drawn(seed, clients, coordinates=4):
    random = np.random.default_rng(seed)
    values = random.normal(size=(clients, coordinates))
    weights = np.tile(random.integers(1, 9, size=(clients, 1)).astype(float), (1, coordinates))
    weights[0, 0] = 0.0  # no say in the first coordinate
    return torch.tensor(values), torch.tensor(weights)


@pytest.mark.parametrize(("seed", "clients"), CASES)
def test_the_weighted_median_is_where_half_of_the_weight_is_below(seed, clients):
    values, weights = drawn(seed, clients)
    found = weighted_median(values, weights)
    for c in range(values.shape[1]):
        pairs = sorted((float(v), float(w)) for v, w in zip(values[:, c], weights[:, c], strict=True) if w)
        repeated = [v for v, w in pairs for _ in range(int(w))]  # a client of weight 3 stands there three times
        assert found[c] == pytest.approx(np.median(repeated))


@pytest.mark.parametrize(("seed", "clients"), CASES)
def test_the_trimmed_mean_leaves_out_a_share_of_the_weight_at_both_ends(seed, clients):
    values, weights = drawn(seed, clients)
    found = trimmed_mean(values, weights)
    for c in range(values.shape[1]):
        pairs = sorted((float(v), float(w)) for v, w in zip(values[:, c], weights[:, c], strict=True) if w)
        pieces = [v for v, w in pairs for _ in range(int(1000 * w))]
        cut = round(TRIMMED * len(pieces))
        assert found[c] == pytest.approx(np.mean(pieces[cut : len(pieces) - cut]), abs=1e-3)


@pytest.mark.parametrize(("seed", "clients"), [case for case in CASES if case[1] > 3])
def test_krum_takes_the_mean_of_those_with_the_nearest_neighbours(seed, clients):
    values, weights = drawn(seed, clients)
    f = max(1, int(LIARS * clients))
    scores = []
    for i in range(clients):
        apart = []
        for j in range(clients):
            if i != j:
                shared = [c for c in range(values.shape[1]) if weights[i, c] > 0 and weights[j, c] > 0]
                apart.append(sum(float(values[i, c] - values[j, c]) ** 2 for c in shared))
        scores.append(sum(sorted(apart)[: clients - f - 2]))
    kept = sorted(range(clients), key=scores.__getitem__)[: clients - f]
    expected = [
        sum(float(weights[i, c] * values[i, c]) for i in kept) / sum(float(weights[i, c]) for i in kept)
        for c in range(values.shape[1])
    ]
    assert multi_krum(values, weights).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", RULES)
def test_one_of_eight_that_is_far_away_moves_no_coordinate_beyond_the_others(name):
    values = torch.randn(8, 50, dtype=torch.float64)
    values[3] = 1e6
    found = RULES[name](values, torch.ones_like(values))
    others = values[[i for i in range(8) if i != 3]]
    assert (found <= others.max(0).values).all()
    assert (found >= others.min(0).values).all()


@pytest.mark.parametrize("name", RULES)
def test_clients_that_agree_are_believed(name):
    value = torch.randn(20, dtype=torch.float64)
    found = RULES[name](value.expand(5, -1), torch.rand(5, 1, dtype=torch.float64).expand(-1, 20))
    assert torch.allclose(found, value)


def test_a_rule_that_nobody_has_is_named_with_those_that_there_are():
    assert rule_of("none") is rule_of("norm") is None
    with pytest.raises(FedSPMError, match=r"no rule 'medain'; known are: none, norm, median, trimmed, krum"):
        rule_of("medain")
