"""What the options of the wire and of privacy cost in accuracy: one line a training, on the sample of Fashion-MNIST.

python benchmarks/wire_options.py [ROUNDS] [CLIENTS] [SEED ...]
"""

import json
import sys
import tempfile
from pathlib import Path

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import TrainingFailed
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import manifest
from fedspm.training.loop import train

OPTIONS = {
    "none": {},
    'wire.precision = "half"': {"wire": {"precision": "half"}},
    "wire.exchanges = 1": {"wire": {"exchanges": 1}},
    "privacy.clip = 1": {"privacy": {"clip": 1.0}},
    "privacy.clip = 1, noise = 0.01": {"privacy": {"clip": 1.0, "noise": 0.01}},
    "privacy.clip = 0.1, noise = 8": {"privacy": {"clip": 0.1, "noise": 8.0}},
    "privacy.clip = 0.01, noise = 8": {"privacy": {"clip": 0.01, "noise": 8.0}},
}
SHOWN = ("system_accuracy", "average_accuracy", "routing_accuracy", "bytes_up", "bytes_down")


def measured(rounds, clients, seed, options):
    settings = {"rounds": rounds, "eval_every": rounds, "seed": seed, "workers": 1, "data": {"clients": clients}}
    config = resolve(settings, {"predictor": {"encoder": "cnn"}}, options)
    federation = config.federation()
    algorithm = build_algorithm(config, Task.of_federation(federation))
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", config, manifest(federation, algorithm, "wire_options"))
        try:
            train(config, algorithm, federation, run=run)
        except TrainingFailed as error:
            return {"failed": str(error)}
        metrics = run.last_metrics()
    return {key: metrics[key] for key in SHOWN} | {"epsilon": metrics.get("privacy", {}).get("epsilon")}


def main(rounds=30, clients=8, *seeds):
    for seed in seeds or (0, 1):
        for name, options in OPTIONS.items():
            line = {"options": name, "seed": seed, **measured(rounds, clients, seed, options)}
            print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
