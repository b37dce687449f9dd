"""The baselines' rounds against torch.nn and torch.optim, written out: full batches, so that nothing is random."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedspm.algorithms import algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings

ROUNDS, STEPS, RATE, MOMENTUM = 2, 3, 0.05, 0.9


class Plain(nn.Module):
    """A body and a head, as the paper of any baseline has them."""

    def __init__(self, shared):
        super().__init__()
        self.body, self.head = nn.Linear(6, 3), nn.Linear(3, 2)
        state = {"body.weight": shared["predictor.0.weight"], "body.bias": shared["predictor.0.bias"]}
        state |= {"head.weight": shared["head.weight"][0], "head.bias": shared["head.bias"][0]}
        self.load_state_dict(state)

    def forward(self, x):
        return self.head(self.body(x))


def steps(model, data, how_many, rate, anchor=None, strength=0.0, moving=None):
    """SGD with momentum on cross-entropy + strength / 2 ‖w − anchor‖²"""
    x, y = data
    moving = list(model.parameters() if moving is None else moving)
    optimiser = torch.optim.SGD(moving, lr=rate, momentum=MOMENTUM)
    for _ in range(how_many):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if anchor is not None:
            distances = [(w - a.detach()).square().sum() for w, a in zip(model.parameters(), anchor, strict=True)]
            loss = loss + strength / 2 * sum(distances)
        loss.backward()
        optimiser.step()
    return model


def averaged(models, counts):
    mean = copy.deepcopy(models[0])
    with torch.no_grad():
        for parts in zip(mean.parameters(), *(model.parameters() for model in models), strict=True):
            parts[0].copy_(sum(n / sum(counts) * part for n, part in zip(counts, parts[1:], strict=True)))
    return mean


def annealed(round):
    return RATE * 0.5 * (1 + math.cos(math.pi * round / ROUNDS))


def both(vectors, name, **options):
    """What we find after two rounds, and the start, from which it can be found in another way."""
    torch.manual_seed(0)
    block = {"encoder": "given", "batch_size": 10_000, "steps": STEPS, "learning_rate": RATE, "momentum": MOMENTUM}
    settings = small_settings(algorithm=name, rounds=ROUNDS, predictor=block, options=options)
    algorithm = algorithm_named(name)(settings, Task.of_federation(vectors), {"predictor": nn.Linear(6, 3)})
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = start = begin(algorithm, engine)
        for number in range(ROUNDS):
            shared = one_round(algorithm, engine, shared, number)
        model = personalised(algorithm, engine, shared)
    data = [((part.x - start["input.mean"]) / start["input.scale"], part.y) for part in vectors.train]
    return model, Plain(start), data


def assert_same(found, model, prefix=""):
    theirs = {"predictor.0.weight": model.body.weight, "predictor.0.bias": model.body.bias}
    theirs |= {"head.weight": model.head.weight[None], "head.bias": model.head.bias[None]}
    for name, value in theirs.items():
        np.testing.assert_allclose(found[prefix + name], value.detach(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "mu"), [("fedavg", 0.0), ("fedprox", 2.0)])
def test_fedavg_and_fedprox(vectors, name, mu):
    found, w, data = both(vectors, name, **({"mu": mu} if mu else {}))
    for number in range(ROUNDS):
        locals_ = [steps(copy.deepcopy(w), rows, STEPS, annealed(number), list(w.parameters()), mu) for rows in data]
        w = averaged(locals_, vectors.counts)
    assert_same(found.shared, w)


def test_ditto_goes_on_with_its_personal_models(vectors):
    lam = 2.0
    found, w, data = both(vectors, "ditto", lam=lam)
    personal = [copy.deepcopy(w) for _ in data]
    for number in range(ROUNDS):
        rate = annealed(number)
        near = list(w.parameters())
        personal = [steps(v, rows, STEPS, rate, near, lam) for v, rows in zip(personal, data, strict=True)]
        w = averaged([steps(copy.deepcopy(w), rows, STEPS, rate) for rows in data], vectors.counts)
    assert_same(found.shared, w)
    for private, v in zip(found.privates, personal, strict=True):
        assert_same(private, v, "personal.")


def test_fedavg_ft_passes_over_the_rows_at_the_first_rate(vectors):
    found, w, data = both(vectors, "fedavg-ft", epochs=2)
    for number in range(ROUNDS):
        w = averaged([steps(copy.deepcopy(w), rows, STEPS, annealed(number)) for rows in data], vectors.counts)
    for private, rows in zip(found.privates, data, strict=True):
        assert_same(private, steps(copy.deepcopy(w), rows, 2, RATE), "personal.")  # all rows are one batch


def test_a_pass_that_does_not_divide_into_batches_reaches_every_row(vectors):
    algorithm = algorithm_named("fedavg")(small_settings(algorithm="fedavg"), Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        client = engine._client(0, {})
        taken = []
        solver = client.solver

        def counting(parameters, objective, batches, **how):
            taken.append(torch.cat([batch.row for batch in batches]))
            return solver(parameters, objective, batches, **how)

        algorithm.fine_tuned(replace(client, solver=counting), shared, 1)
    assert set(taken[0].tolist()) == set(range(client.n))  # 90 rows in batches of 32: three, not two


def test_fedbabu_averages_bodies_by_rows_and_then_tunes_heads(vectors):
    found, w, data = both(vectors, "fedbabu", epochs=1)
    for number in range(ROUNDS):
        bodies = []
        for rows in data:
            model = copy.deepcopy(w)
            bodies.append(steps(model, rows, STEPS, annealed(number), moving=model.body.parameters()))
        w = averaged(bodies, vectors.counts)
    assert_same(found.shared, w)
    for private, rows in zip(found.privates, data, strict=True):
        tuned = copy.deepcopy(w)
        tuned = steps(tuned, rows, 1, RATE, moving=tuned.head.parameters())
        np.testing.assert_allclose(private["head.weight"][0], tuned.head.weight.detach(), rtol=1e-4, atol=1e-6)
