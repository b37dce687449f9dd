"""The novelty score: sums that add, a threshold that keeps its word, and distance where there is no data."""

import torch

from fedspm.serve.novelty import Novelty, Sums


def rows(n, seed, shift=0.0):
    draw = torch.Generator().manual_seed(seed)
    group = torch.randint(0, 3, (n,), generator=draw)
    stretch = torch.tensor([1.0, 10.0, 0.1, 1.0])
    return torch.randn(n, 4, generator=draw) * stretch + 30 * group[:, None] + shift, group


def test_halves_add_up_to_the_whole():
    x, group = rows(300, 0)
    whole = Sums.of(x, group, 3, min_count=1)
    halves = Sums.of(x[:120], group[:120], 3, min_count=1) + Sums.of(x[120:], group[120:], 3, min_count=1)
    for name in ("count", "total", "products"):
        assert torch.allclose(getattr(whole, name), getattr(halves, name))


def test_nothing_of_a_small_component_leaves():
    x, group = rows(300, 0)
    group[group == 2] = 1
    group[:4] = 2
    sums = Sums.of(x, group, 3, min_count=10)
    assert sums.count[2] == 0
    assert not sums.total[2].any()
    assert torch.allclose(sums.products, x[4:].double().T @ x[4:].double())


def test_known_rows_are_flagged_as_often_as_asked_and_strange_ones_nearly_always():
    x, group = rows(3000, 0)
    known = Novelty.fit(Sums.of(x, group, 3, min_count=10)).calibrated([rows(3000, 1)[0]])
    again = Novelty.out_of(known.tensors())
    assert again is not None
    fresh, between = rows(3000, 2)[0], rows(3000, 3, shift=15.0)[0]

    def flagged(each):
        below = torch.searchsorted(again.quantiles, again.distance(each), right=True) - 1
        return float((below >= 950).double().mean())

    assert 0.03 < flagged(fresh) < 0.07
    assert flagged(between) > 0.99  # between the centres, where no client has data


def test_the_scatter_is_the_metric():
    x, group = rows(3000, 0)
    novelty = Novelty.fit(Sums.of(x, group, 3, min_count=10))
    wide, narrow = torch.tensor([[0.0, 10.0, 0.0, 0.0]]), torch.tensor([[0.0, 0.0, 10.0, 0.0]])
    assert novelty.distance(narrow) > 10 * novelty.distance(wide)
