"""What the default preset adds to the method as printed (docs/decisions/0003): its start, its longer steps."""

import math

import numpy as np
import pytest
import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.federated.task import Task
from fedspm.mixture import kmeans_init
from fedspm.mixture.density_ratio import extrapolate, initial_tilts
from fedspm.mixture.em import MIXING_FLOOR, head_scale
from fedspm.mixture.model import initial_shared_heads
from fedspm.mixture.onboarding import log_total
from fedspm.mixture.sketch import Sketch
from small import small_settings


def fedspm(vectors, **changes):
    return FedSPM(small_settings(**changes), Task.of_federation(vectors))


@pytest.mark.parametrize(("wanted", "first"), [(1.2, 1.2), (4.0, 1.5)])  # three clients: at most 3 / 2
def test_the_servers_step_is_annealed_to_one_over_the_first_half(vectors, wanted, first):
    """γ, ξ ← φ + s (φ̄ − φ), φ̄ the average, s = 1 + (first − 1) max(0, 1 − 2 t / T)"""
    algorithm = fedspm(vectors, em={"server_step": wanted}, rounds=10)
    before = {name: torch.zeros(3, 2) for name in ("tilt.xi", "tilt.gamma", "router.0.weight")}
    averaged = {name: torch.ones(3, 2) for name in before}
    for round in range(10):
        step = 1 + (first - 1) * max(0, 1 - 2 * round / 10)
        after = extrapolate(algorithm, before, averaged, round)
        for name in ("tilt.xi", "tilt.gamma"):
            np.testing.assert_allclose(after[name], np.full((3, 2), step), rtol=1e-6)
        np.testing.assert_array_equal(after["router.0.weight"], averaged["router.0.weight"])


def test_rows_of_a_component_step_by_one_over_its_weight_but_no_further_than_the_floor_allows():
    mixing = torch.tensor([0.5, 0.49, 0.01])
    scale = head_scale(mixing, scaled=True)
    expected = [1 / max(weight, MIXING_FLOOR) for weight in mixing.tolist()]
    np.testing.assert_allclose(scale["head.weight"].flatten(), expected, rtol=1e-6)
    np.testing.assert_allclose(scale["head.bias"].flatten(), expected, rtol=1e-6)
    assert scale["head.weight"].shape == (3, 1, 1)
    assert head_scale(mixing, scaled=False) is None


@pytest.mark.parametrize(
    ("hold", "rounds", "held"), [(0, 10, 1), (3, 10, 3), (40, 10, 5)]
)  # at least the first round, at most half of the schedule
def test_the_responsibilities_of_kmeans_are_held_for_the_first_rounds(vectors, hold, rounds, held):
    algorithm = fedspm(vectors, em={"hold": hold}, rounds=rounds)
    assert [algorithm.held(round) for round in range(rounds)] == [round < held for round in range(rounds)]
    assert not fedspm(vectors, em={"start": "random", "hold": hold}, rounds=rounds).held(0)


def test_routing_knows_how_many_rows_a_client_has(vectors):
    """eq. 10 through the algorithm itself: ρ_i = n_i / n and π_ic = τ_ic / n_i, clients of 90, 120 and 150 rows."""
    algorithm = fedspm(vectors)
    shared = initial_tilts(algorithm.task, 2, 4, 0) | {"tau": torch.tensor([[30.0, 60.0], [100.0, 20.0], [75.0, 75.0]])}
    h = torch.randn(5, 1, 4, generator=torch.Generator().manual_seed(1))
    found = algorithm.log_scores(shared, {"router": h})
    for j in range(5):
        for i in range(3):
            ratios = [math.exp(shared["tilt.gamma"][i, c] + shared["tilt.xi"][i, c] @ h[j, 0]) for c in range(2)]
            n = vectors.counts[i]
            score = n / 360 * sum(float(shared["tau"][i, c]) / n * ratios[c] for c in range(2))
            assert found[j, i].exp() == pytest.approx(score, rel=1e-4)


def test_how_clients_are_numbered_changes_no_ones_start(vectors):
    one = initial_tilts(Task.of_federation(vectors), 2, 4, 0)["tilt.xi"]
    turned = Task.of_federation(vectors)
    turned = type(turned)(turned.shape, turned.classes, turned.names[::-1], turned.counts[::-1])
    other = initial_tilts(turned, 2, 4, 0)["tilt.xi"]
    assert torch.equal(one, other.flip(0))
    assert len({tuple(row.flatten().tolist()) for row in one}) == 3  # and no two start alike


def test_heads_start_apart_and_the_first_is_the_same_however_many():
    three, one = (initial_shared_heads(components, 4, 5, seed=0)["head.weight"] for components in (3, 1))
    assert torch.equal(three[:1], one)
    assert not torch.equal(three[0], three[1])


# -- k-means ---------------------------------------------------------------------------------------------------------


def test_a_clients_offset_is_what_its_rows_have_beside_their_centres():
    """Uneven clusters: the mean of the rows would not do."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0]])
    truth = torch.tensor([0] * 30 + [1] * 10)
    offset = torch.tensor([1.0, -2.0])
    label, found = kmeans_init.place(centres[truth] + offset, centres)
    assert torch.equal(label, truth)
    torch.testing.assert_close(found, offset)


def test_first_responsibilities_sum_to_one_and_none_is_zero():
    soft = kmeans_init.softened(torch.tensor([0, 2, 1]), 4)
    torch.testing.assert_close(soft.sum(1), torch.ones(3))
    assert soft.min() == pytest.approx(kmeans_init.SOFTNESS / 4)
    assert soft.argmax(1).tolist() == [0, 2, 1]


def test_what_a_client_does_to_all_of_its_images_does_not_show_in_the_correlations():
    """A brightness ramp that all images have ties the channels together; around the mean image it is gone."""
    draw = torch.Generator().manual_seed(3)
    images = torch.randn(400, 3, 7, 7, generator=draw)
    ramp = 5 * torch.linspace(-1, 1, 7).expand(1, 3, 7, 7)
    seen = kmeans_init.described(images + ramp, (images + ramp).mean(0, keepdim=True))
    plain = kmeans_init.described(images, images.mean(0, keepdim=True))
    torch.testing.assert_close(seen[:, -3:], plain[:, -3:], rtol=1e-3, atol=1e-3)


# -- newcomers -------------------------------------------------------------------------------------------------------


def test_a_sketch_of_single_rows_moves_with_the_clients_exactly():
    """r = 1 / D of every row, before and after somebody comes."""
    draw = torch.Generator().manual_seed(5)

    def clients(m):
        return {
            "tilt.xi": torch.randn(m, 2, 3, generator=draw),
            "tilt.gamma": torch.randn(m, 2, generator=draw),
            "tau": 10 * torch.rand(m, 2, generator=draw) + 1,
        }

    before = clients(2)
    after = {name: torch.cat([value, clients(1)[name]]) for name, value in before.items()}
    rows = torch.randn(6, 1, 3, generator=draw)
    sketch = Sketch(torch.ones(1, 6), (-log_total(before, rows)).exp()[None], rows[None])
    torch.testing.assert_close(sketch.moved(before, after).mass[0], (-log_total(after, rows)).exp())
