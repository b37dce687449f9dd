"""A run that was meant to end goes on for more rounds of its schedule, as if it had been meant to all along."""

import pytest
import torch

from fedspm.algorithms import ALGORITHMS
from fedspm.base.errors import FedSPMError
from fedspm.experiments.cell import Cell
from fedspm.federated.task import Task
from fedspm.runs.compatibility import extends
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import train

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}


def settings(**changes):
    return resolve({"components": 2, "workers": 1, "predictor": BLOCK, "router": BLOCK, **changes})


def trained(folder, vectors, config):
    algorithm = ALGORITHMS[config.algorithm](config, Task.of_federation(vectors))
    run = Run.create(folder, config, manifest(vectors, algorithm, "test"))
    train(config, algorithm, vectors, run=run)
    return run


@pytest.mark.parametrize("name", ["fedspm", "fedgmm", "fedbabu", "ditto"])
def test_more_rounds_end_where_a_longer_run_does(vectors, tmp_path, name):
    whole = trained(tmp_path / "whole", vectors, settings(algorithm=name, rounds=4))
    run = trained(tmp_path / "short", vectors, settings(algorithm=name, rounds=2, horizon=4))
    run.extend(4, "more")
    assert run.config.schedule == 4
    assert not run.has_sketch()  # that of round 2 would not fit
    assert run.manifest["command"] == "test; more"
    train(run.config, run.algorithm(), vectors, run=run, checkpoint=run.latest())
    assert [line["round"] for line in run.metrics()] == [2, 4]
    for ours, theirs in zip(_states(run), _states(whole), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def _states(run):
    checkpoint = run.latest()
    return [checkpoint.shared, *checkpoint.privates.values(), run.sketch() if run.has_sketch() else {}]


def test_a_run_is_not_made_shorter_and_not_longer_than_its_schedule(tmp_path):
    (tmp_path / "config.toml").write_text(settings(rounds=4).to_toml())
    run = Run(tmp_path)
    run.extend(4, "more")
    with pytest.raises(FedSPMError, match="is to train 4 rounds, more than 3"):
        run.extend(3, "less")
    with pytest.raises(FedSPMError, match=r"no longer learns after round 4.*5 rounds train anew"):
        run.extend(5, "more")
    assert run.config.rounds == 4


def test_killed_before_its_new_report_it_is_not_finished(tmp_path, vectors):
    """The report of its old end must not be taken for that of the new one."""
    run = trained(tmp_path / "run", vectors, settings(rounds=2, horizon=4))
    (run.path / "report.html").write_text("after two rounds")
    assert Cell("fedspm", run.config, run.path).finished()
    run.extend(4, "more")
    train(run.config, run.algorithm(), vectors, run=run, checkpoint=run.latest())
    assert not Cell("fedspm", run.config, run.path).finished()


def test_whoever_asks_for_fewer_rounds_is_told_how_many_there_are(tmp_path, vectors):
    run = trained(tmp_path / "run", vectors, settings(rounds=2, horizon=4))
    with pytest.raises(FedSPMError, match="has gone on to 2 rounds; ask for --rounds 2"):
        Cell("fedspm", settings(rounds=1, horizon=4), run.path).finished()


def test_only_more_rounds_of_the_same_schedule_go_on():
    before = settings(rounds=2, horizon=4)
    assert extends(settings(rounds=4), before)
    assert extends(settings(rounds=3, horizon=4), before)
    assert not extends(before, before)
    assert not extends(settings(rounds=1, horizon=4), before)
    assert not extends(settings(rounds=3), before)
    assert not extends(settings(rounds=4, horizon=4).model_copy(update={"rounds": 5}), before)
    assert not extends(settings(rounds=4, seed=1), before)
