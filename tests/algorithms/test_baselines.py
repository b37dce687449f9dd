"""Each baseline reduces exactly to what it should, and does what its paper says."""

import numpy as np
import pytest
import torch

from fedspm import Federation
from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import evaluate
from fedspm.federated.task import Task
from fedspm.mixture.model import log_likelihood, of_label
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings


def trained(federation, name, workers=1, **changes):
    settings = small_settings(algorithm=name, **changes)
    algorithm = algorithm_named(name)(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=settings.seed, workers=workers) as engine:
        shared = begin(algorithm, engine)
        for number in range(settings.rounds):
            shared = one_round(algorithm, engine, shared, number)
        return personalised(algorithm, engine, shared)


def answers(model, federation):
    """Class probabilities of every client for everybody's test rows."""
    x = torch.cat([part.x for part in federation.test])
    with torch.no_grad():
        embedding = model.embed(x)
        return torch.stack([model.local(i, embedding) for i in range(len(federation.names))])


@pytest.fixture(scope="module")
def fedavg(vectors):
    return answers(trained(vectors, "fedavg"), vectors)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedprox", {"options": {"mu": 0.0}}),
        ("fedem", {"components": 1}),
        ("cluster-fl", {"components": 1}),
        ("fedavg-ft", {"options": {"epochs": 0}}),
    ],
)
def test_reduces_to_fedavg(vectors, fedavg, name, changes):
    np.testing.assert_allclose(answers(trained(vectors, name, **changes), vectors), fedavg, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedprox", {"options": {"mu": 10.0}}),
        ("fedavg-ft", {}),
        ("ditto", {}),
        ("fedbabu", {}),
        ("fedem", {"components": 2}),
    ],
)
def test_otherwise_differs_from_fedavg(vectors, fedavg, name, changes):
    assert (answers(trained(vectors, name, **changes), vectors) - fedavg).abs().max() > 1e-4


def test_feddrm_is_fedspm_with_one_component(vectors):
    drm, spm = trained(vectors, "feddrm", components=3), trained(vectors, "fedspm", components=1)
    assert drm.shared.keys() == spm.shared.keys()
    for name, value in drm.shared.items():
        assert value.equal(spm.shared[name]), name


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_evaluates_and_keeps_its_bits(vectors, name):
    one, two = (trained(vectors, name, workers=workers, rounds=2) for workers in (1, 2))
    for key, value in one.shared.items():
        assert value.equal(two.shared[key]), key
        assert value.isfinite().all()
    metrics = evaluate(one, vectors)
    assert 0 <= metrics["system_accuracy"] <= 1
    assert ("routing_accuracy" in metrics) == (name in ("fedgmm", "feddrm", "fedspm"))


def test_a_global_model_scores_the_same_in_system_and_average_accuracy(vectors):
    metrics = evaluate(trained(vectors, "fedavg"), vectors)
    assert metrics["system_accuracy"] == metrics["average_accuracy"]


def test_ditto_moves_from_local_to_global_as_lambda_grows(vectors):
    def distance(lam):
        model = trained(vectors, "ditto", rounds=6, options={"lam": lam})
        personal = model.algorithm.personal(model.privates[0])
        return sum((personal[name] - model.shared[name]).square().sum() for name in personal).item()

    near, middle, far = distance(20.0), distance(1.0), distance(0.0)
    assert near < middle < far


def test_fedbabu_never_moves_the_shared_head(vectors):
    start = trained(vectors, "fedbabu", rounds=1).shared["head.weight"]
    assert start.equal(trained(vectors, "fedbabu", rounds=4).shared["head.weight"])


def test_fedbabu_tunes_its_head_on_the_features_that_it_is_evaluated_on():
    """With batch normalisation those of the averaged statistics, not of the client's own batches."""
    draw = torch.Generator().manual_seed(0)
    shifts = {"dark": 0.0, "light": 3.0}
    rows = {name: (torch.rand(30, 3, 8, 8, generator=draw) + by, torch.arange(30) % 3) for name, by in shifts.items()}
    block = {"encoder": "resnet", "normalisation": "batch", "dimension": 4, "momentum": 0.9, "steps": 3}
    model = trained(Federation.from_arrays(rows), "fedbabu", rounds=2, predictor=block)
    x, y = rows["light"]
    head = model.shared["head.weight"].clone().requires_grad_()
    features = model.embed(x)["predictor"].detach()
    log_likelihood(head, model.shared["head.bias"], features)[torch.arange(30), 0, y].mean().backward()
    one_step = head.detach() + 0.01 * head.grad  # all rows are one batch, and one pass is one step
    torch.testing.assert_close(model.privates[1]["head.weight"], one_step, rtol=1e-4, atol=1e-6)


def test_an_unknown_option_is_named(vectors):
    with pytest.raises(FedSPMError, match="fedprox has no option 'nu'; its options are: mu"):
        trained(vectors, "fedprox", options={"nu": 1.0})
    with pytest.raises(FedSPMError, match=r"options\.mu = -1"):
        trained(vectors, "fedprox", options={"mu": -1})


def test_only_declared_tensors_leave_a_client(vectors):
    for name in ALGORITHMS:
        settings = small_settings(algorithm=name, rounds=2)
        algorithm = algorithm_named(name)(settings, Task.of_federation(vectors))
        seen = []

        class Wire(LocalEngine):
            def __call__(self, step, shared, **arguments):
                reply = super().__call__(step, shared, **arguments)
                sums = reply.totals() if hasattr(reply, "totals") else next(iter(reply.rows.values()))
                seen.extend((step.__name__, key) for key in sums)
                return reply

        with Wire(vectors, seed=0, workers=1) as engine:
            shared = begin(algorithm, engine)
            one_round(algorithm, engine, shared, 1)
        for step, key in seen:
            assert algorithm.steps[step].upload(key), (name, step, key)


def test_joint_feddrm_is_plain_sgd_with_weight_decay_on_the_weighted_losses(vectors):
    """The authors' step, written out with torch.nn and torch.optim."""
    settings = small_settings(
        algorithm="feddrm", options={"joint": True}, em={"server_step": 1.0, "scaled_steps": False}, rounds=1
    )
    algorithm = algorithm_named("feddrm")(settings, Task.of_federation(vectors))
    assert [encoder.role for encoder in algorithm.encoders] == ["predictor"]
    block, counts = settings.predictor, torch.tensor(vectors.counts)
    expected: dict[str, torch.Tensor] = {}
    with LocalEngine(vectors, seed=settings.seed, workers=1) as engine:
        shared = begin(algorithm, engine)
        for i, name in enumerate(vectors.names):
            client = engine._client(i, engine.privates[name])
            (network,) = algorithm.predictor.networks()
            head = torch.nn.Linear(algorithm.predictor.dimension, 2)
            machine = torch.nn.Linear(algorithm.predictor.dimension, len(counts))
            with torch.no_grad():
                head.weight.copy_(client.private["head.weight"][0])
                head.bias.copy_(client.private["head.bias"][0])
                machine.weight.copy_(shared["tilt.xi"][:, 0])
                machine.bias.copy_(shared["tilt.gamma"][:, 0])
            model = torch.nn.ModuleList([network, head, machine])
            optimiser = torch.optim.SGD(
                model.parameters(), lr=algorithm.learning_rate("predictor"), momentum=block.momentum, weight_decay=5e-4
            )
            for batch in client.batches("supervised", block.batch_size, block.steps):
                optimiser.zero_grad()
                features = network(algorithm.standardise(shared, batch.x))
                who = torch.full_like(batch.y, i)
                loss = 0.9 * torch.nn.functional.cross_entropy(head(features), batch.y)
                loss += 0.1 * torch.nn.functional.cross_entropy(machine(features) + counts.log(), who)
                loss.backward()
                optimiser.step()
            weights = {f"predictor.0.{key}": value for key, value in network.named_parameters()}
            weights |= {"tilt.xi": machine.weight[:, None], "tilt.gamma": machine.bias[:, None]}
            for key, value in weights.items():
                expected[key] = expected.get(key, 0) + counts[i] / counts.sum() * value.detach()
        after = one_round(algorithm, engine, shared, 0)
    for key, value in expected.items():
        np.testing.assert_allclose(after[key], value, rtol=1e-4, atol=1e-6, err_msg=key)
        assert not torch.equal(after[key], shared[key]), key


def test_joint_feddrm_routes_without_the_prior(vectors):
    block = {"encoder": "mlp", "dimension": 4, "momentum": 0.9, "steps": 10, "learning_rate": 0.1, "batch_size": 64}
    model = trained(vectors, "feddrm", options={"joint": True}, rounds=20, predictor=block)
    embedding = model.embed(vectors.test[0].x)
    ratio = embedding["router"][:, 0] @ model.shared["tilt.xi"][:, 0].T + model.shared["tilt.gamma"][:, 0]
    torch.testing.assert_close(model.algorithm.log_scores(model.shared, embedding), ratio)
    assert evaluate(model, vectors)["routing_accuracy"] > 0.5


@pytest.mark.parametrize("components", [3, 5])
def test_every_gaussian_of_fedgmm_is_fitted(vectors, components):
    """Also those to which k-means gives 1 % of every row: many rows make them up, if little of each."""
    shared = trained(vectors, "fedgmm", components=components, rounds=1).shared
    assert (shared["tau"].sum(0) > 1).all()
    assert (shared["gauss.mean"].abs().sum(1) > 0).all()


@pytest.mark.parametrize("seed", [0, 1, 5, 7])
def test_cluster_fl_is_evaluated_with_the_best_of_the_final_models(vectors, seed):
    """Also at a client that was never drawn, or not since the models moved."""
    model = trained(vectors, "cluster-fl", clients_per_round=1, rounds=2, seed=seed, em={"start": "random"})
    for part, private in zip(vectors.train, model.privates, strict=True):
        features = model.embed(part.x)["predictor"]
        likelihoods = [model.algorithm.log_likelihood(model.shared, c, features[:, [c]]) for c in range(2)]
        loss = [-of_label(each, part.y).sum() for each in likelihoods]
        assert int(private["cluster"]) == int(torch.stack(loss).argmin())
