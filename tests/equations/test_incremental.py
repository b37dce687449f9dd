"""The incremental E-step: what a batch saw is noted, what it did not see is kept, no row is sent through twice."""

from dataclasses import replace

import pytest
import torch

from fedspm.algorithms import algorithm_named
from fedspm.bench.round import recorded
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.mixture.e_step import AUDITED, all_evidence, incremental
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
    looked = [each for each in passes if not each.training and each.role not in forward]
    assert all(each.rows <= AUDITED for each in looked)
    _, passes = rounds(vectors, name, 2, "exact", learning_rate=0.1, steps=2, batch_size=8)
    assert "predictor" in {each.role for each in passes if not each.training}


def test_the_error_in_tau_is_audited(vectors):
    """Clients here have at most 64 rows or so that the audit sees: its figure is the exact error of the mean."""
    block = {"encoder": "mlp", "momentum": 0.5, "dimension": 4, "learning_rate": 0.3, "steps": 1, "batch_size": 4}
    settings = small_settings(
        predictor=block, router=block, em={"e_step": "incremental", "start": "random", "hold": 0}, rounds=4
    )
    algorithm = algorithm_named("fedspm")(settings, Task.of_federation(vectors))
    with LocalEngine(vectors, seed=0, workers=1) as engine:
        shared = begin(algorithm, engine)
        for number in range(2):
            shared = one_round(algorithm, engine, shared, number)
        before = dict(engine.privates["north"])
        engine.begin_round(2)
        client = replace(engine._client(0, before), x=engine.data[0][0][:AUDITED], y=engine.data[0][1][:AUDITED])
        cut = {
            name: value[:AUDITED] if value.ndim > 1 and len(value) == len(engine.data[0][1]) else value
            for name, value in before.items()
            if not name.startswith("head")
        }
        private = before | cut
        _, after = algorithm.expect(replace(client, private=private), shared)
        evidence = all_evidence(client, lambda x, y: algorithm.evidence(replace(client, private=private), shared, x, y))
        exact = algorithm.posterior(private["mixing"], evidence)
    error = (after["responsibilities"] - exact).mean(0).abs().max()
    assert float(error) > 1e-4
    assert algorithm.notes_of(after)["e_step_error"] == pytest.approx(float(error), rel=1e-4)


@pytest.mark.parametrize(("shape", "expected"), [((1, 28, 28), True), ((6,), False)])
def test_left_to_itself_it_is_for_images(shape, expected):
    task = Task(shape, 2, ("a", "b"), (20, 20))
    assert incremental(small_settings(em={"e_step": "auto"}), task) == expected
    assert incremental(small_settings(em={"e_step": "incremental"}), task)
    assert not incremental(small_settings(em={"e_step": "exact"}), task)
