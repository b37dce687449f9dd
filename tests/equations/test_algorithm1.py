"""Algorithm 1, lines 2–14, against a transcription in plain loops: full batches, so that nothing is random."""

import numpy as np
import pytest
import torch
from torch import nn

from fedspm.algorithms.fedspm import FedSPM
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from small import small_settings

ROUNDS, STEPS = 2, 3


def settings(variant):
    block = {"batch_size": 10_000, "steps": STEPS, "learning_rate": 0.05}
    return small_settings(
        variant=variant,
        rounds=ROUNDS,
        robust="none",  # as printed: no update is shortened
        predictor={"encoder": "given", "momentum": 0.9, **block},
        router={"encoder": "given", "momentum": 0.95, **block},
        em={"start": "random", "hold": 0, "scaled_steps": False, "server_step": 1.0},
    )


@pytest.mark.parametrize("variant", ["1x", "cx"])
def test_two_rounds_are_algorithm_1(vectors, variant):
    torch.manual_seed(0)
    networks = {"predictor": nn.Linear(6, 3), "router": nn.Linear(6, 2)}
    algorithm = FedSPM(settings(variant), Task.of_federation(vectors), networks)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        start = begin(algorithm, engine)
        privates = {name: dict(private) for name, private in engine.privates.items()}
        finished = start
        for number in range(ROUNDS):
            finished = one_round(algorithm, engine, finished, number)
        ours = engine.privates
    theirs, heads = transcription(vectors, algorithm, start, privates)
    for name, value in theirs.items():
        np.testing.assert_allclose(finished[name], value.detach(), rtol=2e-4, atol=2e-5, err_msg=name)
    for name, private in heads.items():
        for key in ("head.weight", "head.bias", "mixing"):
            np.testing.assert_allclose(
                ours[name][key], private[key].detach(), rtol=2e-4, atol=2e-5, err_msg=f"{name} {key}"
            )


def transcription(federation, algorithm, start, privates):
    """Everything in double precision, one sample, component and client at a time."""
    m, n_total = len(federation.names), sum(federation.counts)
    rho = [n / n_total for n in federation.counts]
    components = algorithm.settings.components
    shared = {key: value.double() for key, value in start.items() if not key.startswith("input")}
    privates = {name: {key: value.double() for key, value in private.items()} for name, private in privates.items()}
    data = [((part.x.double() - start["input.mean"]) / start["input.scale"], part.y) for part in federation.train]

    def encode(state, role, c, x):
        copy = c if algorithm.settings.variant == "cx" else 0
        return state[f"{role}.{copy}.weight"] @ x + state[f"{role}.{copy}.bias"]

    def log_p(head, state, c, x, y):  # eq. 2
        return torch.log_softmax(head["head.weight"][c] @ encode(state, "predictor", c, x) + head["head.bias"][c], 0)[y]

    def log_r(state, i, c, x):  # eq. 3
        return state["tilt.gamma"][i, c] + state["tilt.xi"][i, c] @ encode(state, "router", c, x)

    def descend(parameters, loss, momentum, rate):
        parameters = {key: value.clone().requires_grad_() for key, value in parameters.items()}
        velocity = {key: torch.zeros_like(value) for key, value in parameters.items()}
        for _ in range(STEPS):
            gradients = torch.autograd.grad(loss(parameters), list(parameters.values()))
            with torch.no_grad():
                for key, gradient in zip(parameters, gradients, strict=True):
                    velocity[key] = momentum * velocity[key] + gradient
                    parameters[key] -= rate * velocity[key]
        return {key: value.detach() for key, value in parameters.items()}

    for t in range(ROUNDS):
        rate = 0.05 * 0.5 * (1 + np.cos(np.pi * t / ROUNDS))
        w, tau = [], torch.zeros(m, components, dtype=torch.double)
        for i, name in enumerate(federation.names):  # lines 3–6
            head, (x, y) = privates[name], data[i]
            joint = torch.stack(
                [
                    torch.stack(
                        [
                            torch.log(head["mixing"][c])
                            + log_r(shared, i, c, x[j])
                            + log_p(head, shared, c, x[j], y[j])
                            for c in range(components)
                        ]
                    )
                    for j in range(len(y))
                ]
            )
            w.append(torch.softmax(joint, 1).detach())
            tau[i] = w[i].sum(0)
        updates = []
        for i, name in enumerate(federation.names):  # lines 8–13
            head, (x, y) = privates[name], data[i]
            n = len(y)
            mixing = tau[i] / n
            supervised = {k: v for k, v in shared.items() if k.startswith("predictor")}
            supervised |= {k: head[k] for k in ("head.weight", "head.bias")}

            def q1(state, i=i, x=x, y=y, n=n):
                return (
                    -sum(w[i][j, c] * log_p(state, state, c, x[j], y[j]) for j in range(n) for c in range(components))
                    / n
                )

            def q2(state, i=i, x=x, n=n):
                total = 0.0
                for j in range(n):
                    ratios = [[log_r(state, k, c, x[j]) for c in range(components)] for k in range(m)]
                    total += sum(w[i][j, c] * ratios[i][c] for c in range(components))
                    total -= torch.log(sum(tau[k, c] * ratios[k][c].exp() for k in range(m) for c in range(components)))
                return -total / n

            moved = descend(supervised, q1, 0.9, rate)
            drm = {k: v for k, v in shared.items() if k.startswith(("router", "tilt"))}
            moved_drm = descend(drm, q2, 0.95, rate)
            privates[name] = {k: moved.pop(k) for k in ("head.weight", "head.bias")} | {"mixing": mixing}
            updates.append(moved | moved_drm)
        shared = {key: sum(rho[i] * updates[i][key] for i in range(m)) for key in updates[0]}  # line 14
    return shared, privates
