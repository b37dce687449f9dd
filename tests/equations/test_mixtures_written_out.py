"""FedEM, FedGMM and ClusterFL, the baselines with several predictors, against what their papers print."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedspm.algorithms import algorithm_named
from fedspm.algorithms.fedgmm import RIDGE
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.mixture.em import MIXING_FLOOR
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings

C, ROUNDS, STEPS, RATE, MOMENTUM = 2, 2, 3, 0.05, 0.9


class Predictor(nn.Module):
    def __init__(self, shared, c):
        super().__init__()
        self.body, self.head = nn.Linear(6, 3), nn.Linear(3, 2)
        state = {f"body.{part}": shared[f"predictor.{c}.{part}"] for part in ("weight", "bias")}
        self.load_state_dict(state | {f"head.{part}": shared[f"head.{part}"][c] for part in ("weight", "bias")})

    def forward(self, x):
        return torch.log_softmax(self.head(self.body(x)), dim=1)


@pytest.mark.parametrize("scaled", [False, True])
def test_fedem(vectors, scaled):
    """w ∝ π P(y | x); π = mean w; each predictor descends its weighted loss; all are averaged by n_i."""
    torch.manual_seed(0)
    block = {"encoder": "given", "batch_size": 10_000, "steps": STEPS, "learning_rate": RATE, "momentum": MOMENTUM}
    em = {"start": "random", "hold": 0, "scaled_steps": scaled}
    settings = small_settings(algorithm="fedem", rounds=ROUNDS, predictor=block, em=em)
    algorithm = algorithm_named("fedem")(settings, Task.of_federation(vectors), {"predictor": nn.Linear(6, 3)})
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = start = begin(algorithm, engine)
        for number in range(ROUNDS):
            shared = one_round(algorithm, engine, shared, number)
        found = personalised(algorithm, engine, shared)

    predictors = [Predictor(start, c) for c in range(C)]
    mixing = [torch.full((C,), 1 / C) for _ in vectors.names]
    data = [((part.x - start["input.mean"]) / start["input.scale"], part.y) for part in vectors.train]
    for number in range(ROUNDS):
        rate = RATE * 0.5 * (1 + math.cos(math.pi * number / ROUNDS))
        totals = [{key: 0 * value for key, value in each.state_dict().items()} for each in predictors]
        for i, (x, y) in enumerate(data):
            with torch.no_grad():
                likelihood = torch.stack([each(x)[torch.arange(len(y)), y] for each in predictors], 1).exp()
            w = mixing[i] * likelihood
            w = w / w.sum(1, keepdim=True)
            mixing[i] = w.mean(0)
            for c, each in enumerate(predictors):
                model = copy.deepcopy(each)
                optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM)
                for _ in range(STEPS):
                    optimiser.zero_grad()
                    (-w[:, c] * model(x)[torch.arange(len(y)), y]).mean().backward()
                    for value in model.head.parameters():
                        value.grad /= max(float(mixing[i][c]), MIXING_FLOOR) if scaled else 1
                    optimiser.step()
                for key, value in model.state_dict().items():
                    totals[c][key] += len(y) / sum(vectors.counts) * value
        for each, total in zip(predictors, totals, strict=True):
            each.load_state_dict(total)

    for c, each in enumerate(predictors):
        np.testing.assert_allclose(shared["head.weight"][c], each.head.weight.detach(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(shared[f"predictor.{c}.weight"], each.body.weight.detach(), rtol=1e-4, atol=1e-6)
    x = vectors.test[0].x
    for i in range(len(vectors.names)):
        z = (x - start["input.mean"]) / start["input.scale"]
        mixed = sum(mixing[i][c] * each(z).exp() for c, each in enumerate(predictors))
        np.testing.assert_allclose(found.local(i, found.embed(x)).detach(), mixed.detach(), rtol=1e-4, atol=1e-5)


# -- FedGMM ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gmm(vectors):
    settings = small_settings(algorithm="fedgmm", rounds=3)
    algorithm = algorithm_named("fedgmm")(settings, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
        clients = [engine._client(i, engine.privates[name]) for i, name in enumerate(vectors.names)]
    return algorithm, shared, clients


def features(algorithm, shared, x):
    with torch.no_grad():
        return algorithm.router(shared, algorithm.standardise(shared, x))[:, 0].double()


def test_the_gaussians_are_those_of_the_rows_under_the_new_encoder(gmm):
    algorithm, shared, clients = gmm
    w = torch.cat([client.private["responsibilities"] for client in clients]).double()
    h = torch.cat([features(algorithm, shared, client.x) for client in clients])
    for c in range(C):
        mean = np.average(h, axis=0, weights=w[:, c])
        covariance = np.cov(h.T, aweights=w[:, c], ddof=0)
        covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        np.testing.assert_allclose(shared["gauss.mean"][c], mean, rtol=1e-4, atol=1e-5)
        near = 0.1 * RIDGE * np.trace(covariance) / len(covariance)  # the ridge itself must show
        np.testing.assert_allclose(shared["gauss.covariance"][c], covariance, rtol=0, atol=near)


def test_a_client_counts_with_its_rows_and_shows_no_sum_over_few(gmm):
    algorithm, shared, clients = gmm
    for client in clients:
        assert algorithm.maximise(client, shared, shared["tau"])[0].as_sent()[0] == client.n
    few = torch.zeros(clients[0].n, C)
    few[:, 0] = 1.0
    few[:5, 0], few[:5, 1] = 0.0, 1.0  # five rows make up the second component: fewer than min_count
    client = type(clients[0])(**{**vars(clients[0]), "private": {"responsibilities": few}})
    mass = algorithm.weigh(client, shared)[0].totals()["mass"]
    assert mass.tolist() == [client.n - 5, 0]


def test_fedgmm_routes_and_predicts_by_its_densities(gmm, vectors):
    """P_i(c | x) ∝ π_ic N(h; μ_c, Σ_c), P_i(k | x) = Σ_c P_i(c | x) P_c(k | x), i* = argmax ρ_i Σ_c π_ic N_c"""
    algorithm, shared, clients = gmm
    x = vectors.test[1].x[:7]
    with torch.no_grad():
        embedding = algorithm.embed(shared, x)
        labels = algorithm.log_likelihood(shared, embedding["predictor"]).exp()
        scores = algorithm.log_scores(shared, embedding)
        answer = algorithm.local_probabilities(1, clients[1].private, shared, embedding)
    h = features(algorithm, shared, x)
    for j in range(len(x)):
        density = []
        for c in range(C):
            away = h[j] - shared["gauss.mean"][c].double()
            covariance = shared["gauss.covariance"][c].double()
            power = -0.5 * float(away @ torch.linalg.solve(covariance, away))
            density.append(math.exp(power) / math.sqrt(float(torch.linalg.det(2 * math.pi * covariance))))
        joint = [float(clients[1].private["mixing"][c]) * density[c] for c in range(C)]
        for k in range(2):
            expected = sum(joint[c] / sum(joint) * float(labels[j, c, k]) for c in range(C))
            assert answer[j, k] == pytest.approx(expected, rel=1e-3)
        for i, n in enumerate(vectors.counts):
            share = sum(float(shared["tau"][i, c]) / n * density[c] for c in range(C))
            assert scores[j, i].exp() == pytest.approx(n / sum(vectors.counts) * share, rel=1e-3)


def test_cluster_fl_starts_with_the_cluster_of_most_of_its_rows(vectors):
    algorithm = algorithm_named("cluster-fl")(small_settings(algorithm="cluster-fl"), Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        client = engine._client(0, engine.privates["north"])
        for most in range(C):
            held = torch.full((client.n, C), 0.1)
            held[:, most] = 0.9
            asked = type(client)(**{**vars(client), "private": {"responsibilities": held}})
            assert algorithm.chosen(asked, shared) == most
