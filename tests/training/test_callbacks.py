"""Callbacks: when each hook is called, how one stops a training, and what the built-in ones do."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.callbacks import Callback, EarlyStopping, MLflow, Progress, TensorBoard, require_callbacks
from fedspm.training.loop import train
from fedspm.training.validation import hold_out
from small import StopAfter

BLOCK = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 2}


def settings(**changes):
    common = {"components": 2, "rounds": 4, "eval_every": 2, "workers": 1, "predictor": BLOCK, "router": BLOCK}
    return resolve(common | changes)


def trained(federation, config, **how):
    algorithm = build_algorithm(config, Task.of_federation(federation))
    return train(config, algorithm, federation, **how)


def new_run(folder, federation, config):
    algorithm = build_algorithm(config, Task.of_federation(federation))
    return Run.create(folder, config, manifest(federation, algorithm, "test"))


class Diary(Callback):
    """Notes every call."""

    def __init__(self, name="", stop=None, fail=None):
        self.name, self.stop, self.fail, self.calls = name, stop, fail, []
        self.shared_by = [self.calls]

    def sharing(self, other):
        self.shared_by.append(other)
        return self

    def note(self, hook, training):
        for each in self.shared_by:
            each.append((self.name, hook, training.round) if self.name else (hook, training.round))
        if (hook, training.round) == self.stop:
            training.stop()
        if (hook, training.round) == self.fail:
            raise RuntimeError("a bug")

    def setup(self, training):
        self.note("setup", training)

    def on_start(self, training):
        self.note("on_start", training)

    def on_round_start(self, training):
        self.note("on_round_start", training)

    def on_round_end(self, training):
        self.note("on_round_end", training)

    def on_evaluation(self, training, metrics):
        assert metrics is training.metrics is training.history[-1]
        self.note("on_evaluation", training)

    def on_end(self, training):
        self.note("on_end", training)

    def teardown(self, training):
        self.note("teardown", training)


def test_hooks_are_called_in_the_documented_order(vectors):
    diary = Diary()
    training = trained(vectors, settings(rounds=3), callbacks=[diary])
    assert diary.calls == [
        ("setup", 0),
        ("on_start", 0),
        ("on_round_start", 0),
        ("on_round_end", 1),
        ("on_round_start", 1),
        ("on_round_end", 2),
        ("on_evaluation", 2),
        ("on_round_start", 2),
        ("on_round_end", 3),
        ("on_evaluation", 3),
        ("on_end", 3),
        ("teardown", 3),
    ]
    assert training.finished
    assert [line["round"] for line in training.history] == [2, 3]


def test_callbacks_are_called_in_turn_and_at_the_end_in_reverse(vectors):
    both = []
    one, two = Diary("one").sharing(both), Diary("two").sharing(both)
    trained(vectors, settings(rounds=1), callbacks=[one, two])
    names = [(name, hook) for name, hook, _ in both]
    assert names[:4] == [("one", "setup"), ("two", "setup"), ("one", "on_start"), ("two", "on_start")]
    assert names[-4:] == [("two", "on_end"), ("one", "on_end"), ("two", "teardown"), ("one", "teardown")]


@pytest.mark.parametrize("hook", ["on_round_start", "on_round_end", "on_evaluation"])
def test_any_hook_can_stop(vectors, tmp_path, hook):
    config = settings(rounds=6)
    run = new_run(tmp_path / "run", vectors, config)
    done = 2 if hook != "on_round_start" else 3
    training = trained(vectors, config, run=run, callbacks=[Diary(stop=(hook, 2))])
    assert training.round == run.last_round() == done
    assert not training.finished
    assert not run.has_sketch()
    whole = new_run(tmp_path / "whole", vectors, config)
    trained(vectors, config, run=whole)
    trained(vectors, config, run=run, checkpoint=run.latest())  # as if it had never stopped
    for ours, theirs in ((run.latest().shared, whole.latest().shared), (run.sketch(), whole.sketch())):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_after_an_error_everything_is_closed(vectors):
    diary = Diary(fail=("on_round_end", 1))
    with pytest.raises(RuntimeError, match="a bug"):
        trained(vectors, settings(), callbacks=[diary])
    assert diary.calls[-2:] == [("on_round_end", 1), ("teardown", 1)]


def test_what_is_set_up_before_one_that_fails_is_closed(vectors):
    diary = Diary()
    with pytest.raises(RuntimeError, match="a bug"):
        trained(vectors, settings(), callbacks=[diary, Diary(fail=("setup", 0))])
    assert diary.calls == [("setup", 0), ("teardown", 0)]


def test_metrics_are_on_the_disk_before_callbacks_hear_of_them_and_checkpoints_after(vectors, tmp_path):
    config = settings()
    run = new_run(tmp_path / "run", vectors, config)
    seen = []

    class Disk(Callback):
        def on_evaluation(self, training, metrics):
            seen.append((run.last_metrics()["round"], run.last_round()))

    trained(vectors, config, run=run, callbacks=[Disk()])
    assert seen == [(2, 0), (4, 2)]
    assert run.last_round() == 4


@pytest.mark.parametrize(("wrong", "sentence"), [(Progress, "the class Progress; write Progress"), (print, "print")])
def test_what_is_no_callback_is_refused(wrong, sentence):
    with pytest.raises(FedSPMError, match=f"callbacks must extend .*Callback, one is .*{sentence}"):
        require_callbacks([EarlyStopping(), wrong])


def test_without_rows_or_an_engine_there_is_nothing_to_train(vectors):
    algorithm = build_algorithm(settings(), Task.of_federation(vectors))
    with pytest.raises(FedSPMError, match="without a federation train needs an engine"):
        train(settings(), algorithm, None)


# -- early stopping ----------------------------------------------------------------------------------------------------


class Script(EarlyStopping):
    """Takes the values that it is told for those of the evaluations."""

    values: tuple[float, ...] = ()

    def _monitored(self, training, metrics):
        super()._monitored(training, metrics)
        return self.values[len(training.history) - 1]


def stopped(vectors, values, run=None, rounds=6, **how):
    early = Script(**how)
    early.values = values
    left, validation = hold_out(vectors, 0.2, 0)
    config = settings(rounds=rounds, eval_every=1)
    return trained(left, config, validation=validation, callbacks=[early], run=run), early


def test_it_stops_when_nothing_improves_and_goes_back_to_the_best(vectors):
    training, early = stopped(vectors, (0.5, 0.7, 0.6, 0.7, 0.9, 0.9), patience=2)
    assert (early.best_round, early.best_value) == (2, 0.7)
    assert [line["round"] for line in training.history] == [1, 2, 3, 4]
    assert training.round == 2
    assert training.why_stopped == (
        "stopped after round 4: average_accuracy on the validation rows was best after round 2 (0.700)"
    )


def test_the_best_state_is_that_of_its_round(vectors):
    training, _ = stopped(vectors, (0.5, 0.7, 0.6, 0.6), patience=2)
    left, _ = hold_out(vectors, 0.2, 0)
    config = settings(rounds=6, eval_every=1)
    plain = trained(left, config, callbacks=[StopAfter(2)])
    assert all(torch.equal(plain.shared[name], training.shared[name]) for name in plain.shared)
    for one, other in zip(plain.model().privates, training.model().privates, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    for name, value in vars(plain.sketch).items():
        assert torch.equal(value, getattr(training.sketch, name))


@pytest.mark.parametrize(("how", "rounds"), [({"patience": 9}, 2), ({"patience": 9, "restore_best": False}, 3)])
def test_the_best_state_is_kept_without_a_stop_too(vectors, how, rounds):
    training, _ = stopped(vectors, (0.5, 0.7, 0.6), rounds=3, **how)
    assert training.round == rounds


def test_a_small_step_is_no_improvement(vectors):
    training, early = stopped(vectors, (0.5, 0.52, 0.54, 0.9), patience=2, min_delta=0.05)
    assert early.best_round == 1
    assert len(training.history) == 3


def test_a_run_folder_keeps_the_last_round_and_can_be_resumed(vectors, tmp_path):
    left, _ = hold_out(vectors, 0.2, 0)
    run = new_run(tmp_path / "run", left, settings(rounds=6, eval_every=1))
    training, early = stopped(vectors, (0.5, 0.4), patience=1, run=run)
    assert early.best_round == 1
    assert training.round == run.last_round() == 2


def test_without_validation_rows_it_refuses(vectors):
    with pytest.raises(FedSPMError, match="early stopping needs validation rows"):
        trained(vectors, settings(), callbacks=[EarlyStopping()])


def test_the_rows_that_a_run_is_validated_on_will_do(vectors):
    config = settings(data={"validation_fraction": 0.2})
    early = EarlyStopping(monitor="system_accuracy")
    training = trained(vectors.with_validation(0.2, 0), config, callbacks=[early])
    assert early.best_value == max(line["system_accuracy"] for line in training.history)


def test_a_metric_that_there_is_not_is_named(vectors):
    left, validation = hold_out(vectors, 0.2, 0)
    with pytest.raises(FedSPMError, match=r"monitor='luck'.*there are system_accuracy, average_accuracy"):
        trained(left, settings(), validation=validation, callbacks=[EarlyStopping(monitor="luck")])
    with pytest.raises(FedSPMError, match="patience=0"):
        trained(left, settings(), validation=validation, callbacks=[EarlyStopping(patience=0)])


# -- trackers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mlflow(monkeypatch):
    """As much of MLflow as the callback uses."""
    calls = []
    names = ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run")
    fake = SimpleNamespace(
        **{name: lambda *given, name=name, **more: calls.append((name, given, more)) for name in names}
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return calls


def test_mlflow_gets_settings_and_metrics(vectors, mlflow):
    left, validation = hold_out(vectors, 0.2, 0)
    config = settings(privacy={"clip": 1.0})
    tracker = MLflow("study", "one", "http://localhost:5000")
    trained(left, config, validation=validation, callbacks=[tracker])
    names = [name for name, _, _ in mlflow]
    assert names == [
        *("set_tracking_uri", "set_experiment", "start_run", "log_params"),
        *("log_metrics", "log_metrics", "end_run"),
    ]
    assert mlflow[2][2] == {"run_name": "one"}
    assert mlflow[3][1][0]["predictor.encoder"] == "mlp"
    (metrics,), more = mlflow[5][1:]
    assert more == {"step": 4}
    assert {"average_accuracy", "validation.average_accuracy", "seconds", "privacy.releases"} <= metrics.keys()
    assert all(type(value) in (int, float) for value in metrics.values())
    assert mlflow[-1][1] == ("FINISHED",)


def test_mlflow_is_told_of_a_failure(vectors, mlflow):
    with pytest.raises(RuntimeError):
        trained(vectors, settings(), callbacks=[MLflow(), Diary(fail=("on_round_end", 1))])
    assert mlflow[-1] == ("end_run", ("FAILED",), {})


@pytest.mark.parametrize(
    ("module", "callback", "extra"),
    [("mlflow", MLflow, "mlflow"), ("torch.utils.tensorboard", lambda: TensorBoard(Path("board")), "tensorboard")],
)
def test_a_tracker_that_is_not_installed_says_how_to_install_it(vectors, monkeypatch, module, callback, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FedSPMError, match=rf"is not installed; pip install .fedspm\[{extra}\]"):
        trained(vectors, settings(), callbacks=[callback()])


def test_tensorboard_gets_curves(vectors, tmp_path):
    pytest.importorskip("tensorboard", reason="pip install 'fedspm[tensorboard]'")
    trained(vectors, settings(), callbacks=[TensorBoard(tmp_path / "board")])
    assert [path.name.split(".")[0] for path in (tmp_path / "board").iterdir()] == ["events"]
