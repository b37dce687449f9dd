"""Local SGD of FedAvg with the MLP: one client after the other, or groups through one set of kernels (`torch.func`).

python benchmarks/batched_clients.py [FEATURES CLIENTS GROUP]        CPU seconds, alternating; docs/performance.md
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedspm.core.local import Batch, minimise
from fedspm.core.process import keep_freed_memory
from fedspm.encoders import build_encoder
from fedspm.mixture.em import of_label
from fedspm.mixture.model import initial_shared_heads, log_likelihood

ROWS, STEPS, SIZE, CLASSES, RATE, MOMENTUM = 70, 10, 32, 10, 0.01, 0.9
FEATURES, CLIENTS, GROUP = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (20, 200, 50)

encoder = build_encoder("predictor", "mlp", (FEATURES,), 32, copies=1, seed=0)
start = encoder.initial() | initial_shared_heads(1, CLASSES, 32, seed=0)
draw = torch.Generator().manual_seed(0)
x = torch.randn(CLIENTS, ROWS, FEATURES, generator=draw)
y = torch.randint(0, CLASSES, (CLIENTS, ROWS), generator=draw)
rows = torch.randint(0, ROWS, (CLIENTS, STEPS, SIZE), generator=draw)


def loss(w: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return -of_label(log_likelihood(w["head.weight"], w["head.bias"], encoder(w, x, training=True)), y).mean()


def one_by_one() -> dict[str, Tensor]:
    moved = []
    for i in range(CLIENTS):
        batches = (Batch(x[i, row], y[i, row], row) for row in rows[i])
        found = minimise(start, lambda w, b: loss(w, b.x, b.y), batches, learning_rate=RATE, momentum=MOMENTUM)
        moved.append(found)
    return {name: torch.stack([each[name] for each in moved]) for name in start}


def together() -> dict[str, Tensor]:
    moved = []
    gradient = vmap(grad(loss))
    for mine, x_mine, y_mine in zip(rows.split(GROUP), x.split(GROUP), y.split(GROUP), strict=True):
        who = torch.arange(len(mine))[:, None]
        w = {name: value.repeat(len(mine), *[1] * value.ndim) for name, value in start.items()}
        direction = {name: torch.zeros_like(value) for name, value in w.items()}
        for step in range(STEPS):
            row = mine[:, step]
            for name, slope in gradient(w, x_mine[who, row], y_mine[who, row]).items():
                direction[name].mul_(MOMENTUM).add_(slope)
                w[name].sub_(direction[name], alpha=RATE)
        moved.append(w)
    return {name: torch.cat([each[name] for each in moved]) for name in start}


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    alone, batched = one_by_one(), together()
    apart = max(float((alone[name] - batched[name]).abs().max()) for name in start)
    ratios = [seconds(one_by_one) / seconds(together) for _ in range(3)]
    print(
        f"{FEATURES} features, {CLIENTS} clients in groups of {GROUP}: {statistics.median(ratios):.1f} times as fast, "
        f"largest difference {apart:.0e}"
    )


if __name__ == "__main__":
    main()
