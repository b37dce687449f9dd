"""Each baseline reduces exactly to what it should, and does what its paper says."""

import numpy as np
import pytest
import torch

from conftest import small_settings
from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.errors import FedSPMError
from fedspm.evaluation import evaluate
from fedspm.runs import task_of
from fedspm.training import begin, one_round, personalised


def trained(federation, name, workers=1, **changes):
    settings = small_settings(algorithm=name, **changes)
    algorithm = algorithm_named(name)(settings, task_of(federation))
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


def test_an_unknown_option_is_named(vectors):
    with pytest.raises(FedSPMError, match="fedprox has no option 'nu'; its options are: mu"):
        trained(vectors, "fedprox", options={"nu": 1.0})
    with pytest.raises(FedSPMError, match=r"options\.mu = -1"):
        trained(vectors, "fedprox", options={"mu": -1})


def test_only_declared_tensors_leave_a_client(vectors):
    for name in ALGORITHMS:
        settings = small_settings(algorithm=name, rounds=2)
        algorithm = algorithm_named(name)(settings, task_of(vectors))
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
            assert key.split(".")[0] in algorithm.leaves[step], (name, step, key)
