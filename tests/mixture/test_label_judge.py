"""The judged start: clusters are kept where they explain labels, and a single component is left alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError, Refused
from fedspm.data.federation import Federation
from fedspm.data.part import Part, Truth
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.metrics import purity_count
from fedspm.federated.task import Task
from fedspm.mixture import kmeans_init, label_judge
from fedspm.mixture.first_responsibilities import TEXTURES
from fedspm.training.loop import begin
from small import small_settings


def federation(rule, rows=200, clients=3):
    """Two groups six apart along x₂; the label is `rule(x, group)`."""
    generator = torch.Generator().manual_seed(0)
    parts, truth = [], []
    for _ in range(clients):
        group = torch.randint(2, (rows,), generator=generator)
        x = torch.randn(rows, 5, generator=generator) + 2 * torch.randn(5, generator=generator)
        clean = x - x.mean(0)
        x[:, 2] += 6 * group
        parts.append(Part(x, rule(clean, group).long()))
        truth.append(group)
    return Federation(tuple(f"site-{i}" for i in range(clients)), np.arange(2), tuple(parts)), truth


def started(built, **changes):
    algorithm = FedSPM(small_settings(em={"start": "judged"}, **changes), Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine:
        begin(algorithm, engine)
        assert not any(name.startswith("view") for private in engine.privates.values() for name in private)
        return [private["responsibilities"].argmax(1) for private in engine.privates.values()]


def test_groups_with_opposite_rules_are_found():
    built, truth = federation(lambda x, group: (x[:, 0] > 0) ^ (group == 1))
    for components in (2, 3):  # of three clusters, one may hold one side of the threshold
        for found, group in zip(started(built, components=components), truth, strict=True):
            assert len(found.unique()) > 1
            assert purity_count(found, group) > 0.95 * len(group)


def test_groups_with_the_same_rule_are_one_component():
    built, _ = federation(lambda x, group: x[:, 0] > 0)
    assert all(len(found.unique()) == 1 for found in started(built, components=3))


def test_held_out_errors_are_those_of_ridge_regression_fold_by_fold(draw):
    x, y, cluster = torch.randn(50, 4, generator=draw), torch.arange(50) % 3, (torch.arange(50) > 29).long()
    cluster[-1] = 2  # alone: nothing to fit a head to
    error, total = label_judge.held_out_errors(x, y, 3, cluster)
    z, labels = x.double().numpy(), np.eye(3)[y]
    expected = np.zeros(len(label_judge.PENALTIES))
    for k in range(label_judge.FOLDS):
        for c in range(3):
            held, fitted = (
                (cluster == c).numpy() & ((np.arange(50) % label_judge.FOLDS == k) == same) for same in (1, 0)
            )
            for i, penalty in enumerate(label_judge.PENALTIES):
                if not held.any():
                    continue
                if fitted.sum() < 2:
                    expected[i] += np.square(labels[held] - labels.mean(0)).sum()
                    continue
                scatter = np.square(z[fitted] - z[fitted].mean(0)).sum(0).mean()
                head = Ridge(alpha=penalty * scatter).fit(z[fitted], labels[fitted])
                expected[i] += np.square(labels[held] - head.predict(z[held])).sum()
    assert np.allclose(error.numpy(), expected)
    assert float(total) == pytest.approx(np.square(labels - labels.mean(0)).sum())
    assert label_judge.explained(error, total) == pytest.approx(1 - expected.min() / float(total))


def test_textures_see_how_channels_change_together_and_not_light_or_contrast(draw):
    grey = torch.rand(6, 1, 12, 12, generator=draw)
    x = (grey + 0.1 * torch.rand(6, 3, 12, 12, generator=draw)) * 10
    inverted = x.clone()
    inverted[:, 1] = -inverted[:, 1]
    seen = kmeans_init.textures(x)
    assert torch.allclose(seen, kmeans_init.textures(3 * x + 5), atol=1e-2)
    apart = (seen - kmeans_init.textures(inverted)).norm(dim=1)
    assert apart.min() > 2 * torch.pdist(seen).max()


def test_a_channel_inverted_in_half_of_the_images_shows_in_their_textures():
    generator = torch.Generator().manual_seed(0)
    parts, truth = [], []
    for client in range(3):
        group = torch.randint(2, (120,), generator=generator)
        grey = torch.rand(120, 1, 12, 12, generator=generator)
        x = grey.repeat(1, 3, 1, 1) + 0.1 * torch.rand(120, 3, 12, 12, generator=generator)
        x[group == 1, 1] = 1 - x[group == 1, 1]
        parts.append(Part(x + 0.3 * client, group * 0 + torch.arange(120) % 2))
        truth.append(group)
    built = Federation(tuple(f"site-{i}" for i in range(3)), np.arange(2), tuple(parts))
    blocks = {"encoder": "cnn", "momentum": 0.9, "steps": 1}
    settings = small_settings(em={"start": "judged"}, components=2, predictor=blocks, router=blocks)
    algorithm = FedSPM(settings, Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine:
        engine.begin_round(0)
        engine.init_private(algorithm)
        shared = Algorithm.start(algorithm, engine)
        (clusters,) = algorithm.proposed(shared, engine, TEXTURES)
        engine(algorithm.init_responsibilities, shared, **clusters.arguments())
        for private, group in zip(engine.privates.values(), truth, strict=True):
            found = private["responsibilities"].argmax(1)
            assert found.equal(group) or found.equal(1 - group)


def test_a_view_that_the_run_does_not_use_is_refused():
    built, _ = federation(lambda x, group: group == 1)
    algorithm = FedSPM(small_settings(em={"start": "judged"}), Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine, pytest.raises(Refused, match="view 2"):
        engine.begin_round(0)
        engine.init_private(algorithm)
        shared = Algorithm.start(algorithm, engine)
        engine(algorithm.moments, shared, view=torch.tensor(2))


def test_first_responsibilities_can_be_kept_for_ever():
    built, _ = federation(lambda x, group: group == 1)
    algorithm = FedSPM(small_settings(em={"start": "judged", "hold": "ever"}, rounds=50), Task.of_federation(built))
    assert algorithm.held(49)
    capped = FedSPM(small_settings(em={"start": "judged", "hold": 40}, rounds=50), Task.of_federation(built))
    assert capped.held(24)
    assert not capped.held(25)


def test_a_start_from_the_truth_is_a_control_for_data_that_know_it():
    built, truth = federation(lambda x, group: group == 1)
    settings = small_settings(em={"start": "true"}, components=2)
    algorithm = FedSPM(settings, Task.of_federation(built))
    with LocalEngine(built, seed=0, workers=1) as engine, pytest.raises(FedSPMError, match="nobody knows"):
        begin(algorithm, engine)
    known = replace(built, truth=Truth(tuple(truth), tuple(truth), torch.zeros(3, 2)))
    with LocalEngine(known, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for private, group in zip(engine.privates.values(), truth, strict=True):
            assert private["responsibilities"].argmax(1).equal(group)
    assert torch.allclose(shared["tau"].sum(1), torch.tensor(built.counts).float())
    assert algorithm.steps["take_truth"].in_process_only
