"""No setting diverges: local steps that end badly are taken again with smaller ones, the same way on every engine."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.base.errors import TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.evaluation import evaluate
from fedspm.federated.task import Task
from fedspm.nn.sgd import Batch, LossRose, minimise
from fedspm.testing.algorithm_checks import small_federation, train_rounds
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin
from small import small_settings


def trained(algorithm: str, predictor: float, router: float, at_once: int = 1, rounds: int = 2) -> Any:
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 16, "steps": 8}
    settings = small_settings(
        algorithm=algorithm,
        rounds=20,
        em={"start": "random", "normalisers": "exact"},
        predictor=block | {"momentum": 0.9, "learning_rate": predictor},
        router=block | {"momentum": 0.95, "learning_rate": router},
    )
    federation = small_federation()
    method = build_algorithm(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1, clients_at_once=at_once) as engine:
        shared = train_rounds(method, engine, begin(method, engine), 0, rounds)
        return shared, evaluate(personalised(method, engine, shared), federation), engine


@pytest.mark.filterwarnings("ignore:client .* the local steps are taken again")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_corner_of_the_rates_finishes(algorithm: str) -> None:
    for predictor, router in ((0.003, 0.1), (0.2, 0.001), (0.2, 0.1), (2.0, 1.0)):
        shared, metrics, _ = trained(algorithm, predictor, router)
        assert all(value.isfinite().all() for value in shared.values()), (predictor, router)
        assert metrics["average_accuracy"] > 0


def rising(rate: float) -> Iterator[Batch]:
    """A parabola, on which steps of more than 1 climb."""
    yield from (Batch(torch.zeros(1), torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)),) * 12


def parabola(w: Tensors, batch: Batch) -> torch.Tensor:
    return w["w"].square()


def test_a_solver_says_that_the_loss_rose() -> None:
    start = {"w": torch.ones(1)}
    with pytest.raises(TrainingFailed, match=r"the loss rose from .* to .*; lower the learning rate"):
        minimise(start, parabola, rising(1), learning_rate=1.5, momentum=0.0)
    assert abs(float(minimise(start, parabola, rising(1), learning_rate=0.4, momentum=0.0)["w"])) < 1


def test_steps_are_taken_again_and_it_is_said() -> None:
    with pytest.warns(UserWarning, match=r"client '.*', round 0, .*: the loss rose .* again at a rate of "):
        _, _, engine = trained("fedavg", 20.0, 0.01, rounds=1)
    assert engine.repeated.total() > 0


def test_repeated_steps_are_the_same_for_clients_at_once() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (one, _, alone), (other, _, together) = (trained("fedavg", 20.0, 0.01, at_once, 2) for at_once in (1, 3))
    assert alone.repeated == together.repeated
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-4, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:client .* the local steps are taken again")
def test_a_loss_that_is_as_high_with_smaller_steps_is_that_of_hard_rows() -> None:
    rates: list[float] = []

    def solver(parameters: Tensors, *_: Any, learning_rate: float, **__: Any) -> Tensors:
        rates.append(learning_rate)
        raise LossRose(1.0, 100.0, {"w": torch.tensor(learning_rate)})

    rows = torch.zeros(4, 2)
    client = Client("north", 0, rows, torch.zeros(4, dtype=torch.long), {}, 3, 0, solver)
    found = client.descend("drm", {}, parabola, client.batches("drm", 2, 2), learning_rate=0.4)
    assert rates == [0.4, 0.1]
    assert found["w"] == torch.tensor(0.1)
    assert client.repeated == ["drm"]
