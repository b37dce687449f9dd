"""The k-means start finds clusters inside clients, however the clients are shifted, from few rows too."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspm.algorithms.fedspm import FedSPM
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.mixture.kmeans_init import cluster_sums, coarse, correlations, described, first_centres, separation
from fedspm.training.loop import begin
from small import small_settings


def federation(rows, groups, clients=4, gap=6.0):
    """Groups `gap` apart along a direction that all clients share; clients are shifted along all."""
    generator = torch.Generator().manual_seed(0)
    parts, truth = [], []
    for _ in range(clients):
        group = torch.arange(rows) % groups
        x = torch.randn(rows, 5, generator=generator) + 2 * torch.randn(5, generator=generator)
        x[:, 2] += gap * group
        parts.append(Part(x, group * 0 + torch.arange(rows) // 2 % 2))
        truth.append(group)
    names = tuple(f"site-{i}" for i in range(clients))
    return Federation(names, torch.arange(2).numpy(), tuple(parts)), truth


def started(built, **changes):
    algorithm = FedSPM(small_settings(**changes), Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine:
        begin(algorithm, engine)
        return [private["responsibilities"].argmax(1) for private in engine.privates.values()]


def test_with_one_component_nothing_is_described_to_find_it():
    built, _ = federation(rows=30, groups=2)
    algorithm = FedSPM(small_settings(components=1), Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine:
        asked = []
        algorithm.moments = lambda client, shared, view: asked.append(client)
        shared = begin(algorithm, engine)
        assert not asked
        assert shared["tau"].tolist() == [[30.0]] * 4
        for private in engine.privates.values():
            assert private["responsibilities"].tolist() == [[1.0]] * 30
            assert not any(name.startswith("view") for name in private)


def test_groups_are_found_inside_clients_and_mean_the_same_everywhere():
    built, truth = federation(rows=60, groups=2)
    for found, group in zip(started(built, components=2), truth, strict=True):
        assert found.equal(group) or found.equal(1 - group)
    assert len({int(found[0]) for found in started(built, components=2)}) == 1


def test_no_more_clusters_than_there_are_groups():
    for rows in (24, 200):
        built, _ = federation(rows=rows, groups=2)
        for found in started(built, components=4):
            assert len(found.unique()) == 2
    built, _ = federation(rows=90, groups=3)
    assert all(2 <= len(found.unique()) <= 3 for found in started(built, components=4))


def test_a_channel_inverted_in_half_of_the_images_is_found():
    """Averages over the grid do not show it: a pixel's value is as often above its mean as below."""
    generator = torch.Generator().manual_seed(0)
    parts, truth = [], []
    for client in range(3):
        group = torch.arange(80) % 2
        grey = torch.rand(80, 1, 12, 12, generator=generator) + torch.rand(80, 1, 1, 1, generator=generator)
        x = (grey + 0.2 * torch.rand(80, 3, 12, 12, generator=generator)) / 2.2
        x[group == 1, 1] = 1 - x[group == 1, 1]
        x += 0.3 * client * torch.linspace(-1, 1, 12)[:, None]  # a ramp that is the client's own
        parts.append(Part(x, torch.arange(80) // 2 % 2))
        truth.append(group)
    names = tuple(f"site-{i}" for i in range(3))
    built = Federation(names, torch.arange(2).numpy(), tuple(parts))
    for found, group in zip(started(built, components=3), truth, strict=True):
        assert found.equal(group) or found.equal(1 - group)


def test_correlations_by_hand_and_none_of_a_single_channel(draw):
    x = torch.rand(4, 3, 5, 5, generator=draw)
    expected = [[np.corrcoef(image.flatten(1).numpy())[i, j] for i, j in ((0, 1), (0, 2), (1, 2))] for image in x]
    assert torch.allclose(correlations(x), torch.tensor(np.array(expected), dtype=torch.float32), atol=1e-6)
    grey = x[:, :1]
    assert described(grey, grey.mean(0, keepdim=True)).equal(coarse(grey))


def test_first_centres_lie_along_the_principal_axis():
    scatter = torch.diag(torch.tensor([1.0, 9.0, 4.0], dtype=torch.float64))
    assert first_centres(scatter, 3).tolist() == [[0, -3, 0], [0, 0, 0], [0, 3, 0]]


def test_the_separation_index_by_hand():
    x = torch.tensor([0.0, 1.0, 10.0, 11.0], dtype=torch.float64)
    count, total = torch.tensor([2.0, 2.0]).double(), torch.tensor([[1.0], [21.0]]).double()
    between, within = 100.0, 1.0
    assert abs(separation(count, total, x.square().sum()) - (between / 1) / (within / 2)) < 1e-9
    empty = torch.nn.functional.pad(count, (0, 2)), torch.nn.functional.pad(total, (0, 0, 0, 2))
    assert separation(*empty, x.square().sum()) == separation(count, total, x.square().sum())
    assert separation(count.sum()[None], total.sum(0)[None], x.square().sum()) == -math.inf


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 20))
def test_what_a_client_keeps_to_itself_is_no_small_cluster_either(sizes, min_count):
    """All rows together sum to zero, so the server can tell what is missing: nothing, or at least `min_count` rows."""
    label = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    features = torch.randn(len(label), 2)
    count, total, square = cluster_sums(features, label, len(sizes), min_count)
    hidden = sum(sizes) - int(count.sum())
    assert hidden == 0 or hidden >= min(min_count, sum(sizes))
    for c, size in enumerate(sizes):
        assert count[c] in (0, size)
        assert count[c] == 0 or size >= min_count
        assert torch.allclose(total[c], features[label == c].double().sum(0) * (count[c] > 0))
    shown = count[label] > 0
    assert torch.allclose(square, features[shown].double().square().sum())
    if all(size == 0 or size >= min_count for size in sizes):
        assert hidden == 0  # nothing is kept back without a reason
