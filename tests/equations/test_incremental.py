"""The incremental E-step: what a batch saw is noted, what it did not see is kept, no row is sent through twice."""

import pytest
import torch

from fedspm.algorithms import algorithm_named
from fedspm.bench.round import recorded
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.training.loop import begin, one_round
from small import small_settings

METHODS = ["fedspm", "fedem", "fedgmm"]


def rounds(federation, name, count, e_step, **block):
    """Private states after every round, and the passes through encoders of the last one."""
    block = {"encoder": "mlp", "momentum": 0.5, "dimension": 4, **block}
    settings = small_settings(
        algorithm=name, predictor=block, router=block, em={"e_step": e_step, "start": "random", "hold": 0}
    )
    algorithm = algorithm_named(name)(settings, Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        states = []
        for number in range(count):
            with recorded() as passes:
                shared = one_round(algorithm, engine, shared, number)
            states.append(engine.privates["north"] | {"mixing": engine.privates["north"]["mixing"]})
    return states, passes


@pytest.mark.parametrize("name", METHODS)
def test_equals_the_exact_one_when_every_row_is_visited_and_nothing_moves(vectors, name):
    still = {"learning_rate": 1e-30, "steps": 1, "batch_size": 10_000}
    exact, _ = rounds(vectors, name, 3, "exact", **still)
    noted, _ = rounds(vectors, name, 3, "incremental", **still)
    for one, other in zip(exact, noted, strict=True):
        torch.testing.assert_close(other["responsibilities"], one["responsibilities"], rtol=1e-5, atol=1e-6)
    assert (exact[0]["responsibilities"] - exact[2]["responsibilities"]).abs().max() > 1e-4  # π moved it


@pytest.mark.parametrize(("name", "part"), [("fedspm", "label"), ("fedspm", "ratio"), ("fedem", "label")])
def test_only_visited_rows_are_noted(vectors, name, part):
    states, _ = rounds(vectors, name, 2, "incremental", learning_rate=0.1, steps=2, batch_size=8)
    before, after = (state[f"evidence.{part}"] for state in states)
    assert (before != after).any(1).sum() == 16


@pytest.mark.parametrize(("name", "forward"), [("fedspm", set()), ("fedem", set()), ("fedgmm", {"router"})])
def test_no_row_is_sent_through_for_the_e_step_alone(vectors, name, forward):
    _, passes = rounds(vectors, name, 2, "incremental", learning_rate=0.1, steps=2, batch_size=8)
    assert {each.role for each in passes if not each.training} == forward
    _, passes = rounds(vectors, name, 2, "exact", learning_rate=0.1, steps=2, batch_size=8)
    assert "predictor" in {each.role for each in passes if not each.training}
