"""Heads at the optimum for their features: against scikit-learn, and without a trace in what training goes on from."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from fedspm.algorithms import build_algorithm
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.mixture.heads import refitted_heads, with_heads_refitted, with_trained_heads
from fedspm.mixture.model import HEAD
from fedspm.testing.algorithm_checks import small_federation, train_rounds
from fedspm.training.evaluation import prepare
from fedspm.training.loop import begin
from small import small_settings


def rows(n: int = 120) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    features, y = random.normal(size=(n, 1, 5)), random.integers(0, 3, n)
    features[:, 0, 0] += y
    weight = random.dirichlet([1, 1], size=n)
    return torch.tensor(features).float(), torch.tensor(y), torch.tensor(weight).float()


def test_from_zero_it_is_ridge_logistic_regression_of_every_component() -> None:
    features, y, w = rows()
    head = {"head.weight": torch.zeros(2, 3, 5), "head.bias": torch.zeros(2, 3)}
    penalty = 0.02
    found = refitted_heads(head, features, y, w, penalty)
    ones = np.c_[features[:, 0].numpy(), np.ones(len(y))]  # the penalty is on α as well
    for c in range(2):
        fit = LogisticRegression(C=1 / (penalty * len(y)), fit_intercept=False, tol=1e-8, max_iter=1000)
        fit.fit(ones, y.numpy(), sample_weight=w[:, c].numpy())
        ours = np.c_[found["head.weight"][c].numpy(), found["head.bias"][c].numpy()]
        np.testing.assert_allclose(ours - ours.mean(0), fit.coef_ - fit.coef_.mean(0), atol=2e-3)


def test_a_component_without_rows_keeps_its_head() -> None:
    features, y, _ = rows()
    head = {"head.weight": torch.randn(2, 3, 5), "head.bias": torch.randn(2, 3)}
    found = refitted_heads(head, features, y, torch.stack([torch.ones(len(y)), torch.zeros(len(y))], 1), 0.01)
    torch.testing.assert_close(found["head.weight"][1], head["head.weight"][1])
    assert not torch.allclose(found["head.weight"][0], head["head.weight"][0], atol=1e-2)


def test_refitting_again_begins_at_the_trained_head() -> None:
    features, y, w = rows()
    private = {"head.weight": torch.randn(2, 3, 5), "head.bias": torch.randn(2, 3), "mixing": torch.ones(2) / 2}
    once = with_heads_refitted(private, features, y, w, 0.01)
    twice = with_heads_refitted(once, features, y, w, 0.01)
    assert all(torch.equal(once[name], twice[name]) for name in HEAD)
    assert with_trained_heads(twice).keys() == private.keys()
    assert all(torch.equal(with_trained_heads(twice)[name], private[name]) for name in private)


@pytest.mark.parametrize("name", ["fedspm", "feddrm", "fedper"])
def test_training_does_not_notice_that_heads_were_refitted(name: str) -> None:
    federation = small_federation()
    ended = []
    for looks in (False, True):
        predictor = {"encoder": "mlp", "momentum": 0.9, "steps": 3, "dimension": 4, "refit_heads": 0.01}
        settings = small_settings(algorithm=name, predictor=predictor, em={"hold": 1, "normalisers": "exact"})
        algorithm = build_algorithm(settings, Task.of_federation(federation))
        with LocalEngine(federation, seed=0, workers=1) as engine:
            shared = train_rounds(algorithm, engine, begin(algorithm, engine), 0, 2)
            before = engine.privates[federation.names[0]]["head.weight"]
            if looks:
                shared = prepare(algorithm, engine, shared)
                assert not torch.equal(engine.privates[federation.names[0]]["head.weight"], before)
            shared = train_rounds(algorithm, engine, shared, 2, 3)
            ended.append((shared, engine.privates[federation.names[0]]))
    for one, other in zip(*ended, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(value, other[key]) for key, value in one.items())
