"""`clients_per_round`: whoever is not drawn rests, keeps its state and its row of τ."""

import pytest
import torch

from fedspm.algorithms import ALGORITHMS, algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.evaluation import evaluate
from fedspm.runs import task_of
from fedspm.training import begin, one_round, personalised
from small import small_settings


def build(federation, name="fedspm", **changes):
    settings = small_settings(algorithm=name, **changes)
    return algorithm_named(name)(settings, task_of(federation))


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
