"""A round with many small clients: one after the other, or groups of them through one set of kernels.

python benchmarks/batched_clients.py [CLIENTS FEATURES AT_ONCE [ALGORITHM …]]        CPU seconds, by turns
"""

import statistics
import sys
import time

import numpy as np
from torch import Tensor

from fedspm import Federation
from fedspm.algorithms import ALGORITHMS, build_algorithm
from fedspm.engines.local import LocalEngine
from fedspm.federated.task import Task
from fedspm.runs.config import resolve
from fedspm.training.loop import begin, one_round

BLOCK = {"encoder": "mlp", "steps": 10, "batch_size": 32}
ROUNDS = 5  # the first is not counted


def federation(clients: int, features: int) -> Federation:
    """60 to 140 rows a client, of which a fifth is for testing."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(60, 141, clients)
    rows = {f"client {i}": (draw.normal(size=(n, features)), draw.integers(0, 10, n)) for i, n in enumerate(sizes)}
    return Federation.from_arrays(rows, test_fraction=0.2)


def measure(name: str, known: Federation, at_once: int) -> None:
    settings = {"algorithm": name, "rounds": ROUNDS, "predictor": BLOCK, "router": BLOCK}
    config = resolve(settings, {"em": {"start": "random", "hold": 0}})
    algorithm = build_algorithm(config, Task.of_federation(known))
    spent: dict[int, list[float]] = {1: [], at_once: []}
    states: dict[int, dict[str, Tensor]] = {}
    engines = {k: LocalEngine(known, seed=0, workers=1, device="cpu", clients_at_once=k) for k in spent}
    for k, engine in engines.items():
        states[k] = begin(algorithm, engine)
    for number in range(ROUNDS):
        for k, engine in engines.items():
            began = time.process_time()
            states[k] = one_round(algorithm, engine, states[k], number)
            spent[k].append(time.process_time() - began)
    for engine in engines.values():
        engine.__exit__(None, None, None)
    alone, grouped = spent[1][1:], spent[at_once][1:]
    ratio = statistics.median(one / other for one, other in zip(alone, grouped, strict=True))
    apart = max(float((value.double() - states[at_once][key].double()).abs().max()) for key, value in states[1].items())
    ms = [1000 * statistics.median(side) / len(known.names) for side in (alone, grouped)]
    print(
        f"{name:10} CPU ms a client: {ms[0]:6.2f} one by one  {ms[1]:6.2f} together  {ratio:4.1f} times as fast, "
        f"after {ROUNDS} rounds apart by {apart:.0e}",
        flush=True,
    )


def main() -> None:
    clients, features, at_once = map(int, sys.argv[1:4]) if len(sys.argv) > 1 else (200, 20, 100)
    known = federation(clients, features)
    for name in sys.argv[4:] or ALGORITHMS:
        measure(name, known, at_once)


if __name__ == "__main__":
    main()
