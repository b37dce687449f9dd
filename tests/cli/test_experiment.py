"""`fedspm experiment`: what it runs, what it refuses before it trains, and what it says."""

import pytest
from typer.testing import CliRunner

from cells import line, recorded
from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.experiments import Selection, load_plan, runner
from fedspm.experiments.plan import plan_cells
from fedspm.experiments.records import Records


def test_an_experiment_runs_from_the_command_line_and_goes_on(tmp_path):
    order = [
        "experiment",
        "table1",
        "--panels",
        "fashion-mnist",
        "--methods",
        "fedavg",
        "--seeds",
        "3",
        "--rounds",
        "1",
    ]
    order += ["--set", "data.name=fashion-sample", "--set", "predictor.steps=1", "--out", tmp_path]
    assert "0 of 1 trainings" in fedspm(*order).stdout
    again = fedspm(*order).stdout
    assert "1 of 1 trainings" in again
    assert "reduced" in again
    order[order.index("--rounds") + 1] = "2"
    assert "0 of 1 trainings" in fedspm(*order).stdout
    (known,) = Records(tmp_path / "table1" / "cells.jsonl").lines.values()
    assert [each["round"] for each in known["metrics"]] == [1, 2]  # not trained anew


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "there is no experiment 'table9'; there are shifts, table1"),
        (["table1", "--methods", ","], "--methods ','"),
        (["table1", "--seeds", ""], "--seeds ''"),
        (["table1", "--rounds", "300"], "--rounds 300: the schedule has 200"),
        (["table1", "--set", "algorithm=fedavg"], "--set changes what the row fedprox is about"),
        (["table1", "--set", "seed=4"], "use --seeds instead"),
        (["all", "--methods", "fedavg,fedsgd"], "--methods fedsgd: no experiment has it"),
        (["table1", "--out", "file/below"], "cannot be written: Not a directory"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    refused = CliRunner().invoke(app, ["experiment", *arguments])
    assert isinstance(refused.exception, FedSPMError)
    assert sentence in str(refused.exception)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_all_refuses_before_anything_is_trained(tmp_path, monkeypatch):
    began = []
    monkeypatch.setattr(runner, "run_plan", lambda plan, *_, **__: began.append(plan.name))
    plan = load_plan("isic")
    (cell,) = plan_cells(plan, Selection([0], ["fedavg"], settings={"rounds": 9}), tmp_path)
    recorded(tmp_path / "isic" / "cells.jsonl", [line(cell)])
    order = ["experiment", "all", "--methods", "fedavg", "--seeds", "0", "--out", str(tmp_path)]
    refused = CliRunner().invoke(app, order)
    assert "rounds: 9, now 400" in str(refused.exception)
    assert not began


def test_the_page_names_the_folder_it_lies_in(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(runner, "run_plan", lambda plan, wanted, out, **_: called.append(wanted.command(plan, out)))
    for out in (tmp_path, "results"):
        CliRunner().invoke(app, ["experiment", "isic", "--rounds", "9", "--out", str(out)])
    assert called == [f"fedspm experiment isic --rounds 9 --out {tmp_path}", "fedspm experiment isic --rounds 9"]


def test_the_list_counts_what_the_plan_wants(tmp_path):
    plan = load_plan("table1")
    planned = plan_cells(plan, Selection([0], ["fedavg", "feddrm"], ["fashion-mnist"]), tmp_path)
    beyond = plan_cells(plan, Selection([7], ["fedavg"], ["fashion-mnist"], rounds=9), tmp_path)
    recorded(tmp_path / "table1" / "cells.jsonl", [line(cell) for cell in planned])
    assert "2 of 132 done  " in fedspm("experiment", "list", "--out", tmp_path).stdout
    recorded(tmp_path / "table1" / "cells.jsonl", [line(cell) for cell in planned + beyond])
    assert "2 of 132 done, reduced" in fedspm("experiment", "list", "--out", tmp_path).stdout


def test_a_damaged_record_stops_no_other_experiment(tmp_path):
    plan = load_plan("table2")
    (cell,) = plan_cells(plan, Selection([0], ["fedavg"], ["inter-2"]), tmp_path)
    recorded(tmp_path / "table2" / "cells.jsonl", [line(cell)])
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "cells.jsonl").write_text("{]")
    order = ["experiment", "table2", "--methods", "fedavg", "--seeds", "0", "--panels", "inter-2"]
    done = CliRunner().invoke(app, [*order, "--out", str(tmp_path)])
    assert done.exit_code == 0
    assert "nothing is borrowed from table1" in done.output
    assert "1 of 1 trainings are known" in done.output
    everything = CliRunner().invoke(app, ["experiment", "all", *order[2:], "--out", str(tmp_path)])
    assert "1 of 1 trainings are known" in everything.output
