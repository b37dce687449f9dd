"""`fedspm data check` finds what is wrong before training does."""

import re

import numpy as np
import pytest

from fedspm.data.check import inspect_draft
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import ReadOptions
from own_data import HEADER, ROWS, folder_of_images, write_csv


def found(path, **how):
    return inspect_draft(read_path(path, ReadOptions(**how)), 0.3, 0)


def test_a_good_table_has_no_findings(tmp_path):
    findings = found(write_csv(tmp_path / "t.csv", ROWS * 3))
    assert findings.problems == []
    assert findings.shape == [2]
    assert findings.columns == ["age", "pressure"]
    assert findings.clients["nord"] == {"train": 21, "test": 9, "labels": {"ill": 11, "well": 10}, "missing": []}
    assert "0.3 of every client's rows are held out for testing" in findings.remarks
    assert "the client is the column 'site'" in findings.remarks


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    rows = [list(row) for row in ROWS]
    rows[0][1], rows[1][3], rows[2][0], rows[3][2] = "old", "", "", "high"
    findings = found(write_csv(tmp_path / "t.csv", rows))
    assert len(findings.problems) == 4
    assert findings.clients["nord"]["train"] == 8  # the table is shown all the same


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda rows: [[*row, 7] for row in rows * 3], "'more' is left out: it is 7 in every row"),
        (lambda rows: [[*row, j] for j, row in enumerate(rows)], "'more' is another whole number in every row"),
        (lambda rows: [[*row, j % 3] for j, row in enumerate(rows * 2)], None),
        (
            lambda rows: [[*row, 1_700_000_000 + 900 * (j % 7)] for j, row in enumerate(rows)],
            r"'more' lies around 1.7e\+09 and varies by 1.\de\+03, which 32-bit numbers keep in steps of 1.3e\+02",
        ),
        (
            lambda rows: [[*row, 1.5 * j % 7] for j, row in enumerate(rows[:25])],
            "'Süd 2' has .* training rows: too few",
        ),
        (
            lambda rows: [[*row[:3], "rare" if j == 5 else row[3], j % 5] for j, row in enumerate(rows)],
            "class 'rare' has (one|no) training row",
        ),
        (
            lambda rows: [[*row[:3], j, j % 5] for j, row in enumerate(rows)],
            "30 of 30 classes have at most one training row in all clients together; is it a quantity?",
        ),
        (
            lambda rows: [[*row[:3], 3 if j % 5 else row[3], j % 5] for j, row in enumerate(rows)],
            r"some labels are numbers \(3\) and some are words \(ill\)",
        ),
    ],
)
def test_warnings(tmp_path, change, sentence):
    findings = found(write_csv(tmp_path / "t.csv", change(ROWS), [*HEADER, "more"]))
    assert findings.problems == []
    if sentence:
        assert any(re.search(sentence, text) for text in findings.warnings), findings.warnings


def test_rows_that_will_be_held_out_are_no_second_fault(tmp_path):
    findings = found(write_csv(tmp_path / "t.csv", [["", *row[1:]] if j == 3 else row for j, row in enumerate(ROWS)]))
    assert len(findings.problems) == 1
    assert any("rows will be held out for testing; they are counted" in each for each in findings.remarks)


def test_rows_in_two_places(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x=x[:20], y=y[:20], x_test=x[15:25], y_test=y[15:25])
    np.savez(tmp_path / "b.npz", x=x[18:], y=y[18:], x_test=x[:0], y_test=y[:0])
    warnings = " ".join(found(tmp_path).warnings)
    assert "2 training rows are in more than one client" in warnings
    assert "client 'a': 10 of 10 test rows are among the training rows as well" in warnings
    assert "client 'b' has no test rows" in warnings


def test_sizes_that_differ_much_and_one_class_in_a_client(tmp_path):
    x = np.random.default_rng(0).normal(size=(600, 3))
    np.savez(tmp_path / "large.npz", x=x, y=np.arange(600) % 2)
    np.savez(tmp_path / "small.npz", x=x[:8] + 1, y=np.zeros(8, int))
    findings = found(tmp_path)
    assert findings.clients["small"]["missing"] == [1]
    warnings = " ".join(findings.warnings)
    assert "'large' has 420 training rows, 'small' has 6" in warnings
    assert "client 'small' has one class only" in warnings


def test_a_client_with_too_few_rows_is_a_problem(tmp_path):
    folder_of_images(tmp_path)
    for file in sorted((tmp_path / "north").rglob("*.png"))[1:]:
        file.unlink()
    findings = found(tmp_path)
    assert ["client 'north' has only one row to train on" in problem for problem in findings.problems] == [True]


def test_without_rows_to_evaluate_there_is_no_training(tmp_path):
    table = write_csv(tmp_path / "t.csv", ROWS)
    for fraction, validation, sentence in (
        (0.01, 0.0, "no client has test rows, so nothing can be evaluated: choose a larger data.test_fraction"),
        (0.3, 0.01, "data.validation_fraction = 0.01 holds out no row of any client"),
    ):
        findings = inspect_draft(read_path(table, ReadOptions()), fraction, 0, validation)
        assert [sentence in problem for problem in findings.problems] == [True]
    findings = inspect_draft(read_path(table, ReadOptions()), 0.01, 0, 0.2)
    assert findings.problems == []
    assert findings.clients["nord"]["test"] == 2
    assert "0.2 of the training rows stand in for the test rows" in findings.remarks
