"""A federation of processes on this machine, started from Python by one call."""

import numpy as np

from fedspm import Federation
from fedspm.deploy.demo import run_federation


def test_one_call_trains_across_processes(tmp_path, capfd):
    random = np.random.default_rng(0)
    rows = {name: (random.normal(size=(30, 4)), np.arange(30) % 2) for name in ("north", "south")}
    federation = Federation.from_arrays(rows, test_fraction=0.3)
    settings = {"algorithm": "fedavg", "rounds": 1, "eval_every": 1, "predictor": {"steps": 1, "encoder": "mlp"}}
    heard = []
    run = run_federation(settings, tmp_path / "demo", federation=federation, say=heard.append)
    assert run.path == tmp_path / "demo" / "run"
    assert run.last_metrics()["round"] == 1
    assert heard[-1] == "all processes stopped"
    assert capfd.readouterr().out == ""
