"""An experiment, a comparison and a choice of C, each started from Python by one call."""

import subprocess
import sys

import pytest

from fedspm import experiments
from fedspm.base.layers import assignments, parse_assignments
from fedspm.experiments import (
    Selection,
    Unfinished,
    choose_components,
    compare,
    list_experiments,
    load_plan,
    run_experiment,
    run_experiments,
)

QUICK = {
    "data": {"name": "fashion-sample", "clients": 3},
    "predictor": {"steps": 1, "batch_size": 8},
    "router": {"steps": 1, "batch_size": 8},
}


class Heard:
    """Progress that remembers the lines."""

    def __init__(self):
        self.lines = []

    def say(self, text):
        self.lines.append(text)

    def __getattr__(self, name):
        from fedspm.experiments.grid_progress import SILENT

        return getattr(SILENT, name)


def test_one_call_runs_an_experiment(tmp_path, capfd):
    chosen = {"seeds": [0], "methods": ["fedavg"], "panels": ["fashion-mnist"], "rounds": 1}
    result = run_experiment("table1", **chosen, settings=QUICK, out=tmp_path)
    assert capfd.readouterr().out == ""  # silent unless it is asked to tell
    (method,) = result.reached["fashion-mnist"]
    assert 0 <= method.accuracy["system"][0] <= 1
    assert any("the first 1 rounds of 200" in each for each in result.reductions)
    page = (result.folder / "README.md").read_text()
    settings = " ".join(f"--set {each}" for each in assignments(QUICK))
    assert f"`fedspm experiment table1 --rounds 1 --out {tmp_path} {settings}` goes on with it" in page
    assert {each.name: each.done for each in list_experiments(tmp_path)}["table1"] == 1
    heard = Heard()
    again = run_experiment("table1", **chosen, settings=QUICK, out=str(tmp_path), progress=heard)
    assert again.reached == result.reached
    assert heard.lines == [f"table1: {load_plan('table1').title}; 1 of 1 trainings are known"]


def test_one_call_compares_methods(tmp_path):
    settings = {**QUICK, "rounds": 1, "components": 2}
    known = compare(["fedavg", "fedspm-1x"], settings, seeds=[0, 1], out=tmp_path)
    assert [method.name for method in known.methods] == ["fedavg", "fedspm-1x"]
    assert known.missing == ""
    assert "fedspm.experiments.compare" in (tmp_path / "table.md").read_text()
    assert compare(["fedavg", "fedspm-1x"], settings, seeds=[0, 1], out=tmp_path) == known  # nothing is trained again


def test_one_call_chooses_the_number_of_components(tmp_path):
    choice = choose_components([1, 2], {**QUICK, "rounds": 1}, out=tmp_path)
    assert choice.best in (1, 2)
    assert [row[0] for row in choice.rows] == ["1", "2"]


def test_an_error_of_a_training_has_what_the_others_reached(tmp_path):
    settings = {**QUICK, "rounds": 1}
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "ditto-seed0").write_text("in the way")
    with pytest.raises(Unfinished, match="ditto seed 0: ") as caught:
        compare(["fedavg", "ditto"], settings, out=tmp_path)
    assert [method.name for method in caught.value.result.methods] == ["fedavg"]
    assert caught.value.result.missing == "ditto seed 0"
    assert not caught.value.interrupted


def test_one_experiment_that_fails_stops_no_other(tmp_path):
    selection = Selection([0], ["fedavg"], ["fashion-mnist", "inter-2"], rounds=1, settings=QUICK)
    (tmp_path / "table1").write_text("in the way")
    heard = Heard()
    results = run_experiments(selection, out=tmp_path, progress=heard)
    assert next(results).plan.name == "table2"
    with pytest.raises(Exception, match="not finished: table1; the same command goes on"):
        next(results)
    assert any(line.startswith("table1: ") and "cannot be written" in line for line in heard.lines)


def test_what_is_given_twice_is_refused(tmp_path):
    with pytest.raises(Exception, match="seeds are \\[0, 0\\]; give at least one, and each only once"):
        compare(["fedavg"], seeds=[0, 0], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_settings_are_typed_as_they_are_read():
    given = {"data": {"ignore": ["a, b"], "path": "some/place"}, "rounds": 3, "tensorboard": True, "preset": "paper"}
    typed = assignments(given)
    assert typed == ['data.ignore=["a, b"]', "data.path=some/place", "rounds=3", "tensorboard=true", "preset=paper"]
    assert parse_assignments(typed) == given
    assert assignments({"data": {"client_column": "7"}}) == ['data.client_column="7"']


def test_every_public_name_is_there_and_a_worker_does_not_load_them():
    assert all(hasattr(experiments, name) for name in experiments.__all__)
    code = "import sys, fedspm.experiments.worker; print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
