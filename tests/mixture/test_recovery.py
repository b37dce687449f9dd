"""Small federations whose truth is known: every method finds what it says it finds."""

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from fedspm import Federation
from fedspm.algorithms import algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings

FEATURES = {"predictor": nn.Identity(), "router": nn.Identity()}  # the rows themselves: heads and tilts are linear in x
SEEDS = (0, 1)


def block(**changes):
    return {"encoder": "mlp", "momentum": 0.0, "learning_rate": 0.5, "steps": 5, "batch_size": 64} | changes


def fitted(name, clients, networks=FEATURES, **settings):
    """The model of a method after training on {client: (x, y)}."""
    federation = Federation.from_arrays(clients)
    defaults = {"algorithm": name, "em": {"start": "random"}, "predictor": block(), "router": block()}
    chosen = small_settings(**(defaults | settings))
    algorithm = algorithm_named(name)(chosen, Task.of_federation(federation), networks)
    with LocalEngine(federation, seed=chosen.seed, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(chosen.rounds):
            shared = one_round(algorithm, engine, shared, number)
        return personalised(algorithm, engine, shared)


def linear_task(random, component, slopes):
    """x around zero for everybody, labels by the linear rule of each row's component."""
    x = random.normal(size=(len(component), slopes.shape[2]))
    scores = np.einsum("nd,nkd->nk", x, slopes[component]) + 0.1 * random.gumbel(size=(len(x), slopes.shape[1]))
    return x.astype(np.float32), scores.argmax(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_fedem_finds_the_mixing_weights_of_linear_tasks(seed):
    random = np.random.default_rng(seed)
    slopes = random.normal(size=(2, 5, 4))  # two tasks, five classes, four features
    truth, clients = [], {}
    for i, share in enumerate((0.1, 0.25, 0.5, 0.7, 0.95)):
        component = (random.random(600) < share).astype(int)
        truth.append(np.bincount(component, minlength=2) / 600)
        clients[f"site-{i}"] = linear_task(random, component, slopes)
    model = fitted("fedem", clients, rounds=40, seed=seed, predictor=block(learning_rate=1.0, momentum=0.8))
    found = torch.stack([private["mixing"] for private in model.privates]).numpy()
    errors = [np.abs(found[:, list(order)] - np.array(truth)).max() for order in permutations(range(2))]
    assert min(errors) < 0.08


@pytest.mark.parametrize("seed", SEEDS)
def test_fedgmm_finds_its_gaussians(seed):
    random = np.random.default_rng(seed)
    means = np.array([[3.0, 0, 0], [-3, 1, 0], [0, -4, 1]])
    roots = 0.6 * random.normal(size=(3, 3, 3)) + np.eye(3)
    clients = {}
    for i in range(4):
        component = random.choice(3, 600, p=random.dirichlet([2, 2, 2]))
        x = means[component] + np.einsum("nij,nj->ni", roots[component], random.normal(size=(600, 3)))
        clients[f"site-{i}"] = (x.astype(np.float32), (x[:, 0] > 0).astype(int))
    model = fitted("fedgmm", clients, components=3, rounds=25, seed=seed, em={"hold": 5})
    scale, shift = model.shared["input.scale"].numpy(), model.shared["input.mean"].numpy()
    found = model.shared["gauss.mean"].numpy() * scale + shift
    covariance = model.shared["gauss.covariance"].numpy() * scale[:, None] * scale
    order = min(permutations(range(3)), key=lambda order: np.abs(found[list(order)] - means).sum())
    np.testing.assert_allclose(found[list(order)], means, atol=0.3)
    truth = roots @ roots.transpose(0, 2, 1)
    np.testing.assert_allclose(covariance[list(order)], truth, atol=0.15 * np.abs(truth).max() + 0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_cluster_fl_finds_its_clusters(seed):
    random = np.random.default_rng(seed)
    rule = random.normal(size=(2, 6))
    slopes = np.stack([rule, -rule])  # the second cluster calls everything by the other name
    truth = [0, 1, 1, 0, 1, 0, 0]
    clients = {f"site-{i}": linear_task(random, np.full(200, cluster), slopes) for i, cluster in enumerate(truth)}
    model = fitted("cluster-fl", clients, rounds=10, seed=seed)
    found = [int(private["cluster"]) for private in model.privates]
    assert found in (truth, [1 - cluster for cluster in truth])


def gaussian_clients(random, means, n):
    x = [random.normal(size=(size, means.shape[1])) + mean for size, mean in zip(n, means, strict=True)]
    return {f"site-{i}": (part.astype(np.float32), (part[:, 0] > 0).astype(int)) for i, part in enumerate(x)}


FULL_BATCH = block(batch_size=10_000, steps=1, learning_rate=2.0)  # with one step a round, federated is pooled descent
MEANS = np.array([[0.0, 0, 0], [1.5, 0, 0.5], [-1, 1, 0], [0, -0.7, 1]])


def fitted_ratios(clients, seed, rounds=150):
    plain = {"scaled_steps": False, "server_step": 1.0, "start": "random"}
    idle = block(steps=0)
    return fitted(
        "feddrm", clients, rounds=rounds, horizon=100_000, seed=seed, predictor=idle, router=FULL_BATCH, em=plain
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_feddrm_density_ratios_are_those_of_the_gaussians(seed):
    """log p_i/p_0 = (μ_i − μ_0)ᵀ x − (|μ_i|² − |μ_0|²)/2; the baseline drops out of the difference of two tilts."""
    random = np.random.default_rng(seed)
    clients = gaussian_clients(random, MEANS, (3000, 3000, 3000, 3000))
    model = fitted_ratios(clients, seed)
    slope = model.shared["tilt.xi"][:, 0].double() / model.shared["input.scale"]  # of x as it came
    constant = model.shared["tilt.gamma"][:, 0] - slope @ model.shared["input.mean"].double()
    np.testing.assert_allclose(slope - slope[0], MEANS - MEANS[0], atol=0.15)  # a standard error is about 0.04
    norms = (MEANS**2).sum(1) / 2
    np.testing.assert_allclose(constant - constant[0], norms[0] - norms, atol=0.15)


@pytest.mark.parametrize("seed", SEEDS)
def test_feddrm_routes_as_an_independent_logistic_regression_does(seed):
    random = np.random.default_rng(seed)
    clients = gaussian_clients(random, MEANS, (300, 900, 500, 700))
    model = fitted_ratios(clients, seed, rounds=400)
    x = np.concatenate([x for x, _ in clients.values()])
    client = np.repeat(np.arange(4), [len(y) for _, y in clients.values()])
    reference = LogisticRegression(C=np.inf, tol=1e-8, max_iter=10_000).fit(x, client)
    posterior = model.posterior(model.embed(torch.from_numpy(x))).numpy()
    np.testing.assert_allclose(posterior, reference.predict_proba(x), atol=2e-3)
