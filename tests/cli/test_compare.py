"""`fedspm compare`: a grid that survives kills, and tables that do not depend on them."""

import csv
import json
import os
import signal
import subprocess
import sys

import pytest

from commands import PATIENCE, fedspm, wait
from fedspm.experiments.cell import Cell
from fedspm.experiments.select_components import write_choice
from fedspm.runs.folder import Run

GRID = "--clients 3 --components 2 --eval-every 1 --set predictor.steps=2 --set router.steps=2"
GRID += " --set predictor.batch_size=16 --set router.batch_size=16 --set em.hold=1 --rounds 3"


def compare(out, *more, **options):
    return fedspm("compare", *GRID.split(), "--out", out, *more, **options)


def figures(out):
    with open(out / "table.csv") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        del row["seconds_per_round"]
    return rows


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "first"
    text = compare(out, "--algorithms", "fedavg,ditto,fedspm-cx", "--seeds", "0,1").stdout
    return out, text


def test_all_tables_and_pictures_are_there(first):
    out, text = first
    for file in ("table.md", "table.csv", "table.tex", "curves.png", "curves.svg", "cells.jsonl"):
        assert (out / file).stat().st_size > 300, file
    page = (out / "table.md").read_text()
    for word in ("FedAvg (1×)", "Ditto (1×)", "FedSPM (C×)", "<sup>(1)</sup>", "±", "MB up", "seeds 0, 1"):
        assert word in page
    assert "fedavg seed 1" in text
    assert "difference to the best" in text
    cells = [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]
    assert len(cells) == 6
    assert len({cell["data_fingerprint"] for cell in cells}) == 2  # one a seed: the same for every method


def test_the_table_holds_what_the_runs_measured(first):
    out, _ = first
    for row in figures(out):
        run = out / "runs" / f"{row['method']}-seed{row['seed']}"
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        assert float(row["system_accuracy"]) == last["system_accuracy"]
        assert (row["routing_accuracy"] == "") == ("routing_accuracy" not in last)
        assert int(row["bytes_up"]) == last["bytes_up"] > 0


def test_what_is_done_is_not_trained_again_and_a_method_can_be_added(first):
    out, _ = first
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*/metrics.jsonl")}
    text = compare(out, "--algorithms", "fedavg,ditto,fedprox,fedspm-cx", "--seeds", "0,1").stdout
    assert "8 trainings, 6 of them done" in text
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [row["method"] for row in figures(out)][4] == "fedprox"


def test_other_settings_are_refused(first):
    out, _ = first
    refused = compare(out, "--algorithms", "fedavg", "--components", 1, check=False)
    assert refused.returncode == 1
    assert "components: 2, now 1" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_or_interrupted_it_goes_on_to_the_same_table(first, tmp_path, how):
    out, _ = first
    again = tmp_path / "again"
    arguments = ["compare", *GRID.split(), "--out", again, "--algorithms", "fedavg,ditto,fedspm-cx", "--seeds", "0,1"]
    process = subprocess.Popen([sys.executable, "-m", "fedspm", *map(str, arguments)], stdout=subprocess.DEVNULL)
    try:
        wait(lambda: list(again.glob("runs/*/checkpoints/round-*")))
        process.send_signal(how)
        code = process.wait(PATIENCE)
    finally:
        process.kill()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert len(list(again.glob("runs/*"))) < 6
    compare(again, "--algorithms", "fedavg,ditto,fedspm-cx", "--seeds", "0,1")
    wanted = [row for row in figures(out) if row["method"] != "fedprox"]
    assert figures(again) == wanted


def test_a_method_that_fails_does_not_stop_the_others(tmp_path):
    out = tmp_path / "out"
    (out / "runs" / "fedprox-seed0").mkdir(parents=True)
    (out / "runs" / "fedprox-seed0" / "notes.txt").write_text("not a run")
    done = compare(out, "--algorithms", "fedavg,fedprox", check=False)
    assert done.returncode == 1
    assert "fedprox seed 0" in done.stderr
    assert "already exists" in done.stderr
    assert "Traceback" not in done.stderr
    assert [row["method"] for row in figures(out)] == ["fedavg"]
    assert "not finished:** fedprox seed 0" in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--algorithms", "fedavg,fedspn"], "there is no algorithm 'fedspn'"),
        (["--algorithms", "fedavg,fedavg"], "different names"),
        (["--seeds", "1,x"], "different whole numbers"),
        (["--seeds", "-1"], "different whole numbers"),
    ],
)
def test_bad_input_gets_a_sentence(tmp_path, arguments, sentence):
    refused = compare(tmp_path / "out", *arguments, check=False)
    assert refused.returncode == 1
    assert sentence in refused.stderr
    assert not os.path.exists(tmp_path / "out")


def test_two_processes_cannot_train_in_one_folder(first):
    out, _ = first
    holder = (
        "import sys, time; from fedspm.runs.folder import load_run\n"
        "with load_run(sys.argv[1]).locked(): print('held', flush=True); time.sleep(600)"
    )
    run = out / "runs" / "fedavg-seed0"
    process = subprocess.Popen([sys.executable, "-c", holder, run], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        refused = fedspm("resume", run, check=False)
    finally:
        process.kill()
    assert refused.returncode == 1
    assert "another process is training" in refused.stderr
    assert fedspm("resume", run).returncode == 0  # the lock of a killed process is free


def test_choosing_the_number_of_components(tmp_path):
    out = tmp_path / "choose"
    small = GRID.replace("--components 2 ", "").split()
    text = fedspm("choose", *small, "--components", "1,2", "--out", out).stdout
    assert "best      C = " in text
    page = (out / "components.md").read_text()
    assert page.count("best") == 2  # the heading and one row
    assert (out / "components.png").stat().st_size > 5000
    lines = [(out / "runs" / f"c{c}-seed0" / "metrics.jsonl").read_text().splitlines()[-1] for c in (1, 2)]
    for line in map(json.loads, lines):
        assert line["predictive_log_likelihood"] < line["log_likelihood"] < 0
        assert f"{line['predictive_log_likelihood']:.4f}" in page
    assert "Not finished" not in page
    run = Run.open(out / "runs" / "c1-seed0")
    other = run.config.model_copy(update={"components": 3})
    cells = [Cell("C=3", other, out / "runs" / "c3-seed0"), Cell("C=1", run.config, run.path)]
    assert len(write_choice(out, cells, "fedspm choose").rows) == 1
    assert "Not finished: C=3 seed 0.\n" in (out / "components.md").read_text()


@pytest.mark.parametrize(("algorithm", "lacks"), [("fedavg", "model of x"), ("feddrm", "components")])
def test_only_a_mixture_that_routes_has_components_to_choose(tmp_path, algorithm, lacks):
    choose = ("choose", "--algorithm", algorithm, "--components", "1,2,3", "--out", tmp_path / "no")
    refused = fedspm(*choose, check=False)
    assert refused.returncode == 1
    assert f"{algorithm} has no {lacks}; choose C for fedspm or fedgmm" in refused.stderr
