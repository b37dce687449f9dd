"""Flower's own simulation, with Ray's workers: one short training, the same bits as in process, and a resume."""

import pytest
import torch

pytest.importorskip("ray", reason="pip install 'fedspm[flower]'")

from fedspm.algorithms.fedspm import FedSPM
from fedspm.engines.flower.simulation import simulate
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from small import small_settings


def test_a_training_that_is_resumed_in_simulation_gives_the_same_bits(vectors, tmp_path):
    algorithm = FedSPM(small_settings(em={"start": "random", "hold": 0}), Task.of_federation(vectors))

    def train(engine, stop_after=None):
        shared = begin(algorithm, engine)
        states = None
        for number in range(2):
            shared = one_round(algorithm, engine, shared, number)
            states = states or (shared, engine.private_states())
        if stop_after:
            engine.restore(1, states[1])  # as a run that was stopped after its first round
            shared = one_round(algorithm, engine, states[0], 1)
        return shared, engine.private_states()

    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared, privates = train(engine)
    again, privates_again = simulate(
        vectors, algorithm, tmp_path, "run1", lambda engine: train(engine, 1), workers=2, device="cpu"
    )
    for name, value in shared.items():
        assert torch.equal(value, again[name]), name
    for client, private in privates.items():
        for name, value in private.items():
            assert torch.equal(value, privates_again[client][name]), (client, name)
