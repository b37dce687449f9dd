"""The k-means start finds clusters inside clients, however the clients are shifted, from few rows too."""

import torch

from fedspm.algorithms.fedspm import FedSPM
from fedspm.data.federation import Federation, Part
from fedspm.engines.local import LocalEngine
from fedspm.mixture.initialise import first_centres, separation
from fedspm.runs import task_of
from fedspm.training import begin
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
    algorithm = FedSPM(small_settings(**changes), task_of(built))
    with LocalEngine(built, seed=0, workers=1) as engine:
        begin(algorithm, engine)
        return [private["responsibilities"].argmax(1) for private in engine.privates.values()]


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


def test_first_centres_lie_along_the_principal_axis():
    scatter = torch.diag(torch.tensor([1.0, 9.0, 4.0], dtype=torch.float64))
    assert first_centres(scatter, 3).tolist() == [[0, -3, 0], [0, 0, 0], [0, 3, 0]]


def test_the_separation_index_by_hand():
    x = torch.tensor([0.0, 1.0, 10.0, 11.0], dtype=torch.float64)
    count, total = torch.tensor([2.0, 2.0]).double(), torch.tensor([[1.0], [21.0]]).double()
    between, within = 100.0, 1.0
    assert abs(separation(count, total, x.square().sum()) - (between / 1) / (within / 2)) < 1e-9
