"""What a method does not look at makes no other training of it; what it looks at does."""

import pytest
import torch

from fedspm.algorithms import ALGORITHMS
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.runs.compatibility import changed, missing_metrics
from fedspm.runs.config import resolve
from fedspm.training.loop import begin, one_round

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}
OTHERS = {"start": "random", "hold": 1, "e_step": "incremental", "scaled_steps": False, "server_step": 1.0}
SAME_ALL_THE_SAME = {("feddrm", "start")}  # but more bytes travel


def settings(name, **em):
    return resolve({"algorithm": name, "components": 2, "rounds": 4, "predictor": BLOCK, "router": BLOCK, "em": em})


def trained(config, federation):
    algorithm = ALGORITHMS[config.algorithm](config, Task.of_federation(federation))
    with LocalEngine(federation, seed=config.seed, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(config.rounds):
            shared = one_round(algorithm, engine, shared, number)
        return shared


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_method_says_what_of_em_it_looks_at(vectors, name):
    usual = settings(name)
    found = trained(usual, vectors)
    for key, value in OTHERS.items():
        other = settings(name, **{key: value})
        looked_at = key in ALGORITHMS[name].em
        assert changed(usual, other).keys() == ({f"em.{key}"} if looked_at else set())
        again = trained(other, vectors)
        same = all(torch.equal(tensor, again[each]) for each, tensor in found.items())
        assert same != looked_at or (name, key) in SAME_ALL_THE_SAME, key


def test_methods_are_never_alike():
    assert changed(settings("fedavg", hold=1), settings("fedprox", hold=2)).keys() == {"algorithm", "em.hold"}


@pytest.mark.parametrize(
    ("rounds", "done", "said"),
    [((), 5, True), ((10,), 25, True), ((10, 20), 25, False), ((), 0, False), ((), None, False), ((), 9, False)],
)
def test_metrics_that_end_before_the_newest_checkpoint_are_said_to_be_missing(tmp_path, rounds, done, said):
    found = missing_metrics(tmp_path, [{"round": each} for each in rounds], done, every=10 if done != 5 else 5)
    assert len(found) == said
    assert not said or "metrics.jsonl is missing or lacks lines" in found[0]
