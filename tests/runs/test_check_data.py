"""Whether data can be trained on, asked from Python by one call."""

import numpy as np

from fedspm.runs.check_data import check_data
from fedspm.runs.config import resolve


def test_one_call_checks_ones_own_data(tmp_path):
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=random.normal(size=(20, 3)), y=np.arange(20) % 2)
    findings = check_data(resolve({"data": {"name": str(tmp_path)}}))
    assert findings.problems == []
    assert {name: client["train"] for name, client in findings.clients.items()} == {"north": 14, "south": 14}
    np.savez(tmp_path / "west.npz", x=random.normal(size=(20, 2)), y=np.arange(20) % 2)
    assert "client 'west' has rows of shape (2,)" in check_data(resolve({"data": {"name": str(tmp_path)}})).problems[0]


def test_what_the_method_cannot_take_is_a_problem(tmp_path):
    random = np.random.default_rng(0)
    for name in ("north", "south"):
        np.savez(tmp_path / f"{name}.npz", x=random.normal(size=(20, 3)), y=np.arange(20) % 2)
    config = resolve({"data": {"name": str(tmp_path)}, "predictor": {"encoder": "resnet"}})
    assert len(check_data(config).problems) == 1
