"""A new data set is one file: installed from outside, it is found by its name and trained on."""

import json
import os

import pytest

from commands import fedspm

MODULE = """
import numpy as np
from fedspm import Federation

def load(path):
    \"\"\"Two wards, whose readings lie around different values.\"\"\"
    draw = np.random.default_rng(0)
    y = np.arange(40) % 2
    rows = {ward: (draw.normal(size=(40, 3)) + 3 * y[:, None] + shift, y) for ward, shift in (("east", 0), ("west", 5))}
    return Federation.from_arrays(rows, test_fraction=0.25)
"""


@pytest.fixture
def with_wards(tmp_path):
    """The environment of a process that finds the data set `wards`, as pip would have installed it."""
    site = tmp_path / "site"
    facts = site / "wards-1.0.dist-info"
    facts.mkdir(parents=True)
    (site / "wards.py").write_text(MODULE)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: wards\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[fedspm.data]\nwards = wards:load\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}


def test_a_data_set_in_one_file_is_found_and_trained_on(with_wards, tmp_path):
    assert "wards           a plugin" in fedspm("data", "list", env=with_wards).stdout
    small = ["--rounds", 1, "--workers", 1, "--set", "predictor.steps=2"]
    fedspm("train", "--algorithm", "fedavg", "--data", "wards", *small, "--out", tmp_path / "run", env=with_wards)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["clients"] == ["east", "west"]
    metrics = json.loads(fedspm("evaluate", tmp_path / "run", "--json", env=with_wards).stdout)
    assert metrics["round"] == 1
