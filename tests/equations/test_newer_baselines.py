"""SCAFFOLD, FedPer and FedAdam: two rounds written out slowly, with full batches, and what each reduces to."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from fedspm import Federation
from fedspm.algorithms import algorithm_named
from fedspm.algorithms.fedadam import FedAdam
from fedspm.algorithms.fedper import FedPer
from fedspm.base.errors import Refused
from fedspm.engines.local import LocalEngine
from fedspm.federated.replies import Mean
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from small import small_settings, toy_rows

ROUNDS, STEPS, RATE, MOMENTUM = 2, 3, 0.05, 0.9
WEIGHTS = {"predictor.0.weight": (3, 6), "predictor.0.bias": (3,), "head.weight": (1, 2, 3), "head.bias": (1, 2)}


def method(federation, kind, momentum=MOMENTUM, **options):
    """With a linear encoder of six features to three."""
    torch.manual_seed(0)
    block = {"encoder": "given", "batch_size": 10_000, "steps": STEPS, "learning_rate": RATE, "momentum": momentum}
    kind = algorithm_named(kind) if isinstance(kind, str) else kind
    settings = small_settings(algorithm=kind.__name__.lower(), rounds=ROUNDS, predictor=block, options=options)
    return kind(settings, Task.of_federation(federation), {"predictor": nn.Linear(6, 3)})


def states(federation, algorithm):
    """The server's state and the clients' before the first round and after every round, and the bytes of the last."""
    with LocalEngine(federation, seed=0, workers=1) as engine:
        found = [(begin(algorithm, engine), dict(engine.private_states()))]
        for number in range(ROUNDS):
            found.append((one_round(algorithm, engine, found[-1][0], number), dict(engine.private_states())))
        return found, engine.traffic


def trained(federation, kind, **options):
    return states(federation, method(federation, kind, **options))[0][-1][0]


def rows_of(federation, shared):
    return [((part.x - shared["input.mean"]) / shared["input.scale"], part.y) for part in federation.train]


def annealed(round):
    return RATE * 0.5 * (1 + math.cos(math.pi * round / ROUNDS))


def gradient(w, rows):
    """Of the mean cross-entropy of a linear body with a linear head."""
    x, y = rows
    w = {name: value.clone().requires_grad_() for name, value in w.items()}
    body = x @ w["predictor.0.weight"].T + w["predictor.0.bias"]
    loss = nn.functional.cross_entropy(body @ w["head.weight"][0].T + w["head.bias"][0], y)
    return dict(zip(w, torch.autograd.grad(loss, list(w.values())), strict=True))


def descended(w, rows, rate, momentum=MOMENTUM, correction=None):
    """d ← μ d + g + correction, w ← w − η d"""
    direction = {name: torch.zeros_like(value) for name, value in w.items()}
    for _ in range(STEPS):
        slope = gradient(w, rows)
        for name in w:
            direction[name] = momentum * direction[name] + slope[name] + (correction[name] if correction else 0)
        w = {name: w[name] - rate * direction[name] for name in w}
    return w


def weights_of(state):
    return {name: state[name] for name in WEIGHTS}


def averaged(models, shares):
    return {name: sum(share * model[name] for share, model in zip(shares, models, strict=True)) for name in models[0]}


def assert_close(found, expected, prefix="", **precision):
    for name, value in expected.items():
        precision = {"rtol": 1e-4, "atol": 1e-6} | precision
        np.testing.assert_allclose(found[prefix + name], value, err_msg=name, **precision)


@pytest.fixture(scope="module")
def shares(vectors):
    return [count / sum(vectors.counts) for count in vectors.counts]


# -- SCAFFOLD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server_rate", [1.0, 0.5])
def test_scaffold(vectors, server_rate):
    found, _ = states(vectors, method(vectors, "scaffold", server_rate=server_rate))
    start = found[0][0]
    w, data = weights_of(start), rows_of(vectors, start)
    c = {name: torch.zeros_like(value) for name, value in w.items()}
    own = [copy.deepcopy(c) for _ in data]
    for number in range(ROUNDS):
        eta, moved, changes = annealed(number), [], []
        for i, rows in enumerate(data):
            y = descended(w, rows, eta, momentum=0, correction={name: c[name] - own[i][name] for name in c})
            new = {name: own[i][name] - c[name] + (w[name] - y[name]) / (STEPS * eta) for name in c}
            changes.append({name: new[name] - own[i][name] for name in c})
            own[i] = new
            moved.append(y)
        mean, step = averaged(moved, [1 / 3] * 3), averaged(changes, [1 / 3] * 3)
        w = {name: w[name] + server_rate * (mean[name] - w[name]) for name in w}
        c = {name: c[name] + step[name] for name in c}
    shared, privates = found[-1]
    assert_close(shared, w)
    assert_close(shared, c, "control.", atol=1e-5)
    for name, control in zip(vectors.names, own, strict=True):
        assert_close(privates[name], control, "control.", atol=1e-5)


def test_with_everybody_answering_the_servers_control_is_the_mean_of_all(vectors):
    found, _ = states(vectors, method(vectors, "scaffold"))
    for shared, privates in found[1:]:
        for name in (name for name in shared if name.startswith("control.")):
            own = torch.stack([private[name] for private in privates.values()])
            np.testing.assert_allclose(shared[name], own.mean(0), rtol=1e-4, atol=1e-6)
            assert own.std(0).max() > 1e-3  # clients differ, or the mean would say nothing


def test_the_servers_control_moves_by_the_share_of_clients_that_answered(vectors):
    algorithm = method(vectors, "scaffold")
    zeros = {"control.head.bias": torch.zeros(1, 2)}
    reply = Mean(1, **{"control.head.bias": torch.ones(1, 2)})
    reply.answered = ("north",)

    class Answered:
        round = 0

        def __call__(self, step, shared):
            return reply

    state = algorithm.server_round(zeros, Answered())
    np.testing.assert_allclose(state["control.head.bias"], 1 / 3)


def test_scaffold_with_the_same_rows_everywhere_is_sgd():
    """As with one client alone, which a federation must not have: c_i = c, and nothing is corrected."""
    same = Federation.from_arrays(dict.fromkeys(("north", "south"), toy_rows(90, 0.0, False, seed=0)))
    assert_close(trained(same, "scaffold"), weights_of(trained(same, "fedavg", momentum=0.0)), rtol=1e-6)


# -- FedPer ----------------------------------------------------------------------------------------------------------


def test_fedper(vectors, shares):
    found, _ = states(vectors, method(vectors, "fedper"))
    (start, first), (shared, privates) = found[0], found[-1]
    data, body = rows_of(vectors, start), {name: start[name] for name in WEIGHTS if name.startswith("predictor")}
    heads = [{name: first[client][name] for name in ("head.weight", "head.bias")} for client in vectors.names]
    for number in range(ROUNDS):
        moved = [descended(body | head, rows, annealed(number)) for head, rows in zip(heads, data, strict=True)]
        heads = [{name: model[name] for name in heads[0]} for model in moved]
        body = averaged([{name: model[name] for name in body} for model in moved], shares)
    assert_close(shared, body)
    for client, head in zip(vectors.names, heads, strict=True):
        assert_close(privates[client], head)


def test_heads_of_fedper_never_leave(vectors):
    sent = set()

    class Watched(FedPer):
        def update(self, client, shared):
            reply, private = super().update(client, shared)
            sent.update(reply.as_sent()[1])
            return reply, private

    found, _ = states(vectors, method(vectors, Watched))
    assert sent == {"predictor.0.weight", "predictor.0.bias"}
    assert not any(name.startswith("head") for name in found[-1][0])


def test_a_step_of_fedper_that_sent_a_head_would_be_refused(vectors):
    class Careless(FedPer):
        def update(self, client, shared):
            reply, private = super().update(client, shared)
            return Mean(client.n, **reply.as_sent()[1], **private), private

    with pytest.raises(Refused, match=r"'head\.\w+' is not declared to leave a client in step update"):
        states(vectors, method(vectors, Careless))


# -- FedAdam ---------------------------------------------------------------------------------------------------------


def test_fedadam(vectors, shares):
    rate, beta1, beta2, tau = 0.03, 0.8, 0.95, 0.01
    found, _ = states(vectors, method(vectors, "fedadam", server_rate=rate, beta1=beta1, beta2=beta2, tau=tau))
    start = found[0][0]
    w, data = weights_of(start), rows_of(vectors, start)
    m, v = ({name: np.zeros(shape) for name, shape in WEIGHTS.items()} for _ in range(2))
    for number in range(ROUNDS):
        mean = averaged([descended(w, rows, annealed(number)) for rows in data], shares)
        for name in w:
            change = (mean[name] - w[name]).double().numpy()
            m[name] = beta1 * m[name] + (1 - beta1) * change
            v[name] = beta2 * v[name] + (1 - beta2) * change**2
            w[name] = w[name] + torch.from_numpy(rate * m[name] / (np.sqrt(v[name]) + tau)).float()
    assert_close(found[-1][0], w)
    assert_close(found[-1][0], m, "adam.m.")
    assert_close(found[-1][0], v, "adam.v.", atol=1e-8)


def test_fedadam_without_memory_and_with_a_large_tau_is_fedavg(vectors):
    found = trained(vectors, "fedadam", beta1=0.0, beta2=0.0, server_rate=1e4, tau=1e4)
    assert_close(found, weights_of(trained(vectors, "fedavg")), atol=1e-5)


def test_fedadam_without_memory_and_with_a_small_tau_moves_every_entry_by_its_rate(vectors):
    found, _ = states(vectors, method(vectors, "fedadam", beta1=0.0, beta2=0.0, server_rate=0.02, tau=1e-9))
    (before, _), (after, _) = found[:2]
    for name in WEIGHTS:
        np.testing.assert_allclose((after[name] - before[name]).abs(), 0.02, rtol=1e-3)


def test_moments_are_never_sent(vectors):
    seen = set()

    class Watched(FedAdam):
        def update(self, client, shared):
            seen.update(shared)
            return super().update(client, shared)

    found, traffic = states(vectors, method(vectors, Watched))
    _, usual = states(vectors, method(vectors, "fedavg"))
    assert any(name.startswith("adam.") for name in found[-1][0])
    assert seen == {*WEIGHTS, "input.mean", "input.scale"}
    assert (traffic.down, traffic.up) == (usual.down, usual.up)
