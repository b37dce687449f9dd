"""`fedspm bench scale`: a round with 8 to 1,000 clients, with the same data in all and with the same data per client.

Every size is measured in a process of its own, so that its peak of memory is its own: `python -m fedspm.bench.scale`.
"""

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.progress import track

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.bench.measure import machine
from fedspm.data.catalog.sources import load_data
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.readers.draft import Draft
from fedspm.federated.task import Task
from fedspm.report.terminal import console
from fedspm.runs.config import Config, resolve
from fedspm.training.engine import in_process
from fedspm.training.loop import begin, one_round

CLIENTS = (8, 32, 128, 512, 1000)
ROWS_A_CLIENT = 70
WARM_UP = 1


def bench_scale(
    settings: Mapping[str, Any] | None = None, repeats: int = 5, clients: Sequence[int] = CLIENTS
) -> dict[str, Any]:
    """CPU seconds a round, peak memory and the cost of a client that computes nothing, and how the seconds grow."""
    settings = settings or {}
    sizes = []
    measured: dict[tuple[int, int], dict[str, Any]] = {}  # the largest is the same both ways
    for fixed in ("total", "a client"):
        for count in track(clients, f"fixed data {fixed}", console=console, transient=True):
            rows = ROWS_A_CLIENT * (count if fixed == "a client" else max(clients))
            if (count, rows) not in measured:
                order = {"settings": settings, "clients": count, "rows": rows, "repeats": repeats}
                measured[count, rows] = _measured(order)
            sizes.append({"fixed": fixed, **measured[count, rows]})
    growth = {
        fixed: exponent([size for size in sizes if size["fixed"] == fixed], "batch_rows", "seconds")
        for fixed in ("total", "a client")
    }
    config = resolve(settings)
    names = {"algorithm": f"{config.algorithm} {config.variant}", "data": config.data.name, "machine": machine()}
    return {**names, "sizes": sizes, "growth_exponent": growth}


def exponent(sizes: Sequence[dict[str, Any]], work: str, cost: str) -> float | None:
    """The slope of log cost over log work by least squares; 1 is linear growth. None where the work is the same."""
    x, y = [math.log(size[work]) for size in sizes], [math.log(size[cost]) for size in sizes]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - middle) ** 2 for each in x)
    if spread < 0.01:
        return None
    return round(sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / spread, 3)


def _measured(order: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "fedspm.bench.scale"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise FedSPMError(f"{order['clients']} clients: {said[-1] if said else 'the process was killed'}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(order: dict[str, Any]) -> dict[str, Any]:
    fixed = {"em": {"start": "random"}, "data": {"clients": order["clients"]}, "workers": 1, "device": "cpu"}
    config = resolve(order["settings"], fixed)
    federation = divided(config.data.name, order["clients"], order["rows"])
    still = resolve(config.model_dump(exclude_none=True), {"predictor": {"steps": 0}, "router": {"steps": 0}})
    seconds = _round_seconds(config, federation, order["repeats"])
    idle = _round_seconds(still.model_copy(update={"components": 1}), federation, order["repeats"])
    steps = config.predictor.steps + config.router.steps
    batches = [min(config.predictor.batch_size, n) * steps for n in federation.counts]
    return {
        "clients": order["clients"],
        "rows": sum(federation.counts),
        "batch_rows": sum(batches),
        "seconds": round(seconds, 4),
        "idle_ms_a_client": round(1000 * idle / order["clients"], 4),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def divided(data: str, clients: int, rows: int) -> Federation:
    """As many of the images as wanted, over as many clients."""
    images = load_data(data)
    if isinstance(images, Federation | Draft):
        raise FedSPMError(f"{data} comes divided into clients; scale needs images to divide")
    x, y, names = images
    return impose(x[:rows], y[:rows], names, Heterogeneity(clients=clients), seed=0)


def _round_seconds(config: Config, federation: Federation, repeats: int) -> float:
    algorithm = build_algorithm(config, Task.of_federation(federation))
    with in_process(config, federation) as engine:
        shared = begin(algorithm, engine)
        found = []
        for number in range(WARM_UP + repeats):
            began = time.process_time()
            shared = one_round(algorithm, engine, shared, number)
            found.append(time.process_time() - began)
    return sorted(found[WARM_UP:])[repeats // 2]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(json.load(sys.stdin))))
