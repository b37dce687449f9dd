"""`clients_per_round`: whoever is not drawn rests, keeps its state and its row of τ."""

from dataclasses import replace

import pytest
import torch

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.data.part import Truth
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import evaluate
from fedspm.federated.metrics import purity_count
from fedspm.federated.task import Task
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings


def build(federation, name="fedspm", **changes):
    settings = small_settings(algorithm=name, **changes)
    return algorithm_named(name)(settings, Task.of_federation(federation))


def test_whoever_is_not_drawn_keeps_its_state_and_its_row(vectors):
    algorithm = build(vectors, clients_per_round=2, rounds=6)
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(6):
            before, tau, was = dict(engine.privates), shared["tau"], shared
            shared = one_round(algorithm, engine, shared, number)
            drawn = algorithm.participants(number)
            (resting,) = set(range(3)) - set(drawn)
            assert engine.privates[vectors.names[resting]] is before[vectors.names[resting]]
            assert all(engine.privates[vectors.names[i]] is not before[vectors.names[i]] for i in drawn)
            assert shared["tau"][resting].equal(tau[resting])
            assert not shared["tilt.xi"].equal(was["tilt.xi"])
            assert engine.traffic.down > 0


def test_everybody_is_drawn_equally_often_and_by_the_seed_alone(vectors):
    algorithm = build(vectors, clients_per_round=1)
    drawn = torch.tensor([algorithm.participants(number)[0] for number in range(600)])
    assert (torch.bincount(drawn, minlength=3) - 200).abs().max() < 50  # 4 standard deviations
    assert [build(vectors, clients_per_round=1).participants(n) for n in range(9)] == drawn[:9, None].tolist()
    other = build(vectors, clients_per_round=1, seed=1)
    assert [other.participants(n)[0] for n in range(9)] != drawn[:9].tolist()


@pytest.mark.parametrize("clients_per_round", [3, 99])
def test_drawing_all_is_not_drawing(vectors, clients_per_round):
    states = []
    for changes in ({}, {"clients_per_round": clients_per_round}):
        algorithm = build(vectors, **changes)
        with LocalEngine(vectors, seed=0, workers=1) as engine:
            states.append(one_round(algorithm, engine, begin(algorithm, engine), 0))
    assert all(value.equal(states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_with_a_part_of_its_clients(vectors, name):
    algorithm = build(vectors, name, clients_per_round=1)
    with LocalEngine(vectors, seed=0, workers=2) as engine:
        shared = begin(algorithm, engine)
        for number in range(2):
            shared = one_round(algorithm, engine, shared, number)
        metrics = evaluate(personalised(algorithm, engine, shared), vectors)
    assert all(value.isfinite().all() for value in shared.values())
    assert set(metrics["clients"]) == set(vectors.names)


@pytest.mark.parametrize("rounds", [0, 1])
def test_components_are_judged_of_the_clients_that_were_drawn(vectors, rounds):
    hidden = [tuple((part.x[:, 0] > 2).long() for part in parts) for parts in (vectors.train, vectors.test)]
    known = replace(vectors, truth=Truth(*hidden, torch.full((3, 2), 0.5)))
    algorithm = build(known, clients_per_round=1, em={"start": "random"})
    with LocalEngine(known, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(rounds):
            shared = one_round(algorithm, engine, shared, number)
        model = personalised(algorithm, engine, shared)
    metrics = evaluate(model, known)
    assert ("component_purity" in metrics) == ("component_rand_index" in metrics) == (rounds > 0)
    if rounds:
        (i,) = algorithm.participants(0)
        found = model.privates[i]["responsibilities"].argmax(1)
        assert metrics["component_purity"] == purity_count(found, known.truth.train[i]) / known.counts[i]
