"""All ten algorithms with a thousand clients of few rows in one process: CPU seconds and whether resuming is exact.

python benchmarks/thousand.py [CLIENTS] [ALGORITHM …]        two rounds of one step a block, the second also resumed
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fedspm import Federation
from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import evaluate
from fedspm.federated.task import Task
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round

BLOCK = {"steps": 1, "encoder": "mlp"}


def timed(work: Callable[[], object]) -> tuple[float, object]:
    began = time.process_time()
    made = work()
    return time.process_time() - began, made


def measure(name: str, federation: Federation) -> None:
    config = resolve({"algorithm": name, "rounds": 2, "predictor": BLOCK, "router": BLOCK, "em": {"hold": 0}})
    algorithm = build_algorithm(config, Task.of_federation(federation))
    spent = {}
    with tempfile.TemporaryDirectory() as folder, LocalEngine(federation, seed=0, workers=1, device="cpu") as engine:
        run = Run(Path(folder))
        spent["start"], shared = timed(lambda: begin(algorithm, engine))
        spent["round"], shared = timed(lambda: one_round(algorithm, engine, shared, 0))
        spent["save"], _ = timed(lambda: run.save(Checkpoint(1, 0.0, shared, engine.private_states()), 1))
        straight = one_round(algorithm, engine, shared, 1)
        spent["load"], checkpoint = timed(run.latest)
        with LocalEngine(federation, seed=0, workers=1, device="cpu") as other:
            other.restore(1, checkpoint.privates)
            resumed = one_round(algorithm, other, checkpoint.shared, 1)
        spent["evaluation"], _ = timed(
            lambda: evaluate(personalised(algorithm, engine, straight), federation, engine.map)
        )
    same = all(torch.equal(straight[key], resumed[key]) for key in straight)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts = "  ".join(f"{part} {seconds:6.2f}" for part, seconds in spent.items())
    print(
        f"{name:10} CPU s: {parts}  peak so far {peak:,.0f} MB  resumed {'alike' if same else 'OTHERWISE'}", flush=True
    )


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    draw = np.random.default_rng(0)
    rows = {f"client {i}": (draw.normal(size=(20, 6)), draw.integers(0, 3, 20)) for i in range(clients)}
    federation = Federation.from_arrays(rows, test_fraction=0.3)
    for name in sys.argv[2:] or ALGORITHMS:
        measure(name, federation)


if __name__ == "__main__":
    main()
