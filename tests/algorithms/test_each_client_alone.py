"""Local is FedAvg of one client, client by client, and nothing leaves."""

import torch

from fedspm.algorithms import algorithm_named
from fedspm.algorithms.fedavg import FedAvg
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.evaluation import model_of
from fedspm.training.loop import begin, one_round
from small import small_settings


def test_it_is_fedavg_without_the_others(vectors):
    settings = small_settings(algorithm="local")
    algorithm = algorithm_named("local")(settings, Task.of_federation(vectors))
    alone = FedAvg(settings, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine, LocalEngine(vectors, seed=0, workers=1) as other:
        start, same = begin(algorithm, engine), begin(alone, other)
        shared = start
        expected = dict.fromkeys(vectors.names, same)
        for number in range(2):
            shared = one_round(algorithm, engine, shared, number)
            other.begin_round(number)
            for client in expected:
                other.begin_round(number, [vectors.names.index(client)])
                expected[client] = expected[client] | other(alone.update, expected[client]).result()
        model = model_of(algorithm, engine, shared)
    assert all(shared[name].equal(start[name]) for name in start)
    assert algorithm.steps["update"].uploads == {}
    for private, state in zip(model.privates, expected.values(), strict=True):
        for name, value in algorithm.personal(private).items():
            assert value.equal(state[name]), name
    weights = torch.stack([private["personal.head.weight"] for private in model.privates])
    assert not weights[0].equal(weights[1])
