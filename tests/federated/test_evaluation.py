"""Evaluation with many small clients: they share pieces, and each is told apart again."""

import pytest
import torch

from fedspm import Federation
from fedspm.algorithms import algorithm_named
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import ask, evaluate
from fedspm.federated.task import Task
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round
from small import small_settings, toy_rows


@pytest.fixture(scope="module")
def federation() -> Federation:
    rows = {f"client {i}": toy_rows(12 + i % 3, i / 10, bool(i % 2), seed=i) for i in range(30)}
    return Federation.from_arrays(rows | {"large": toy_rows(900, 0.0, True, seed=99)}, test_fraction=0.4)


@pytest.mark.parametrize("name", ["fedspm", "fedem", "ditto"])
def test_small_clients_share_pieces(name, federation):
    algorithm = algorithm_named(name)(small_settings(algorithm=name), Task.of_federation(federation))
    embeddings = []
    embed = algorithm.embed
    algorithm.embed = lambda shared, x: embeddings.append(len(x)) or embed(shared, x)
    with LocalEngine(federation, seed=0, workers=1, device="cpu") as engine:
        shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
        model = personalised(algorithm, engine, shared)
        metrics = evaluate(model, federation)
    assert embeddings == [sum(len(part) for part in federation.test[:30]), 256, len(federation.test[30]) - 256]
    for i, (client, part) in enumerate(zip(federation.names, federation.test, strict=True)):
        alone = ask(model, torch.full_like(part.y, i), part.x, part.y)
        assert metrics["clients"][client]["rows"] == len(part)
        assert metrics["clients"][client]["accuracy"] == pytest.approx(float((alone.own == part.y).float().mean()))
        right = (alone.system == part.y).float().mean()
        assert metrics["clients"][client]["system_accuracy"] == pytest.approx(float(right))
