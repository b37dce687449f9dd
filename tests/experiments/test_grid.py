"""Many trainings side by side: what stops them, and two grids on the same folder."""

import json
import subprocess
import sys
from contextlib import closing

import pytest
from filelock import FileLock

from commands import PATIENCE, fedspm
from fedspm.base.errors import FedSPMError
from fedspm.experiments.cell import Cell
from fedspm.experiments.grid import Grid, _complaint
from fedspm.runs.config import resolve

DIES = "import os, sys; sys.stdout.write('{'); sys.stdout.flush(); os._exit(3)"
COMPLAINS = "import sys; sys.stdout.write('{'); sys.exit('the disk is full')"
FIRST_ENDS = "import json, sys, time; 'first' in json.load(sys.stdin)['folder'] or time.sleep(600)"


class Looking:
    def __init__(self):
        self.begun, self.ended_cells = [], []

    def began(self, cell):
        self.begun.append(cell.row)

    def heard(self, cell, line): ...

    def ended(self, cell, problem):
        self.ended_cells.append(cell.row)

    def waiting(self, cells): ...

    def stopping(self): ...


def starting(program):
    def start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)

    return start


def test_a_process_that_dies_in_the_middle_of_a_line_disturbs_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting(DIES))
    cells = [Cell(row, resolve({}), tmp_path / row) for row in ("first", "second")]
    ended = list(Grid(cells, 1, "", Looking()).run())
    assert [cell.row for cell, _ in ended] == ["first", "second"]
    assert all(problem for _, problem in ended)


def test_what_a_process_said_before_it_died_is_what_went_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting(COMPLAINS))
    ((_, problem),) = Grid([Cell("first", resolve({}), tmp_path)], 1, "", Looking()).run()
    assert problem == "the disk is full"


@pytest.mark.parametrize(
    ("code", "failure", "said", "complaint"),
    [
        (1, None, ["a warning", "the disk is full"], "the disk is full"),
        (1, None, [], "its process ended with exit code 1"),
        (-9, None, ["a warning"], "its process was killed by signal 9; it had said: a warning"),
        (0, ValueError("Expecting value"), [], "Expecting value"),
        (-9, FedSPMError("other settings"), ["a warning"], "other settings"),
    ],
)
def test_why_a_process_ended_badly(code, failure, said, complaint):
    assert _complaint(code, failure, said) == complaint


def test_a_cell_that_cannot_be_claimed_stops_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting("import sys; sys.stdin.read()"))
    monkeypatch.setattr(Cell, "finished", lambda self: self.row in looking.ended_cells)
    looking = Looking()
    (tmp_path / ".first.claim").mkdir()
    cells = [Cell(row, resolve({}), tmp_path / row) for row in ("first", "second")]
    ended = {cell.row: problem for cell, problem in Grid(cells, 1, "", looking).run()}
    assert ended["second"] is None
    assert ".first.claim" in ended["first"]


def test_when_results_cannot_be_taken_nothing_more_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting(FIRST_ENDS))
    monkeypatch.setattr(Cell, "finished", lambda self: self.row in looking.ended_cells)
    looking = Looking()
    cells = [Cell(row, resolve({}), tmp_path / row) for row in ("first", "second", "third")]
    grid = Grid(cells, 1, "", looking)
    with closing(grid.run()) as ended:
        cell, problem = next(ended)  # and then the disk is full
    assert (cell.row, problem) == ("first", None)
    assert grid.stopped
    assert "third" not in looking.begun


def test_every_cell_is_trained_however_many_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting("import sys; sys.stdin.read()"))
    monkeypatch.setattr(Cell, "finished", lambda self: self.row in looking.ended_cells)
    looking = Looking()
    cells = [Cell(str(i), resolve({}), tmp_path / str(i)) for i in range(8)]
    assert {cell.row for cell, _ in Grid(cells, 3, "", looking).run()} == {str(i) for i in range(8)}


def test_grids_share_cells(tmp_path, monkeypatch):
    """The first cell is claimed by another grid, which is done with it when our second has ended."""
    done = set()

    class Other(Looking):
        waited = False

        def waiting(self, cells):
            self.waited = True
            done.add("first")
            claim.release()

        def ended(self, cell, problem):
            super().ended(cell, problem)
            done.add(cell.row)

    monkeypatch.setattr(Grid, "_start", starting("import sys; sys.stdin.read()"))
    monkeypatch.setattr(Cell, "finished", lambda self: self.row in done)
    cells = [Cell(row, resolve({}), tmp_path / row) for row in ("first", "second")]
    looking = Other()
    claim = FileLock(tmp_path / ".first.claim", thread_local=False)
    with claim:
        ended = list(Grid(cells, 1, "", looking).run())
    assert looking.waited
    assert [cell.row for cell, problem in ended if problem is None] == ["second", "first"]


def test_a_cell_is_free_again_when_its_training_has_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(Grid, "_start", starting(COMPLAINS))
    cells = [Cell("first", resolve({}), tmp_path / "first")]
    for _ in range(2):
        assert [problem for _, problem in Grid(cells, 1, "", Looking()).run()] == ["the disk is full"]
    claim = cells[0].claim()
    assert claim is not None
    assert cells[0].claim() is None
    claim.release()


def test_two_grids_on_the_same_folder_do_not_disturb_each_other(tmp_path):
    order = ["experiment", "table1", "--panels", "fashion-mnist", "--methods", "fedavg", "--jobs", "1"]
    order += ["--seeds", "0", "--rounds", "1"]
    order += ["--set", "data.name=fashion-sample", "--set", "predictor.steps=1", "--out", str(tmp_path)]
    other = subprocess.Popen([sys.executable, "-m", "fedspm", *order], stdout=subprocess.PIPE, text=True)
    fedspm(*order)
    assert other.wait(PATIENCE) == 0
    lines = [json.loads(text) for text in (tmp_path / "table1" / "cells.jsonl").read_text().splitlines()]
    assert [line["method"] for line in lines] == ["fedavg"]
