"""The examples run, on few rounds, and say something."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_images", ("3 clients, images of (3, 8, 8)", "missing classes: [8, 9]", "a nine as south scans it")),
        ("tabular", ("30 features", "'worst area' by", "posterior over sites: coarse")),
        ("two_hospitals", ("center 1: 192 / 48 rows", "routing")),
    ],
)
def test_it_runs(name, words, monkeypatch, capsys):
    file = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), "2"])
    runpy.run_path(str(file))
    printed = capsys.readouterr().out
    for word in (*words, "after 2 rounds", "fedspm train --data"):
        assert word in printed
    assert len(file.read_text().splitlines()) < 60
