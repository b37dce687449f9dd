"""`fedspm bench route`: routed and answered queries against the bare forward passes of router and predictor.

The bare side sends the rows through both encoders as plain modules and does nothing with what they answer. The weights
are untrained: they do not change what a pass costs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedspm.algorithms import build_algorithm
from fedspm.bench.measure import alternated, machine, ratio
from fedspm.engines.local import LocalEngine
from fedspm.federated.evaluation import Model
from fedspm.federated.task import Task
from fedspm.report.terminal import console
from fedspm.runs.config import resolve
from fedspm.training.loop import begin

SIZES = (1, 4, 16, 64, 256, 1024)
ROWS = 2048  # about as many rows a measurement, however large the batches


def bench_route(
    settings: Mapping[str, Any] | None = None, repeats: int = 5, sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """Queries per second of every batch size, and how that compares with the bare passes."""
    config = resolve(settings or {})
    with console.status("reading the data"):
        federation = config.federation()
    method = build_algorithm(config, Task.of_federation(federation))
    with LocalEngine(federation, seed=0, workers=1, device="cpu") as engine:
        model = Model(method, begin(method, engine), list(engine.privates.values()))
        networks = [network for encoder in method.encoders for network in encoder.networks()]
        everything = torch.cat([part.x for part in federation.train])
        everything = everything[torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))]
        batches = []
        for size in sizes:
            x = everything[:size]

            @torch.no_grad()
            def bare(x: torch.Tensor = x) -> None:
                for network in networks:
                    network(x)

            @torch.no_grad()
            def routed(x: torch.Tensor = x) -> None:
                model.answer(model.embed(x))

            seconds = alternated({"bare": bare, "routed": routed}, repeats, max(1, ROWS // size // 4))
            each = {side: sorted(values)[len(values) // 2] for side, values in seconds.items()}
            batches.append(
                {
                    "batch": size,
                    "rows_per_second": round(size / each["routed"], 1),
                    "of_bare": ratio(seconds["bare"], seconds["routed"]),
                    "overhead_ms": round(1000 * (each["routed"] - each["bare"]), 4),
                }
            )
    names = {"algorithm": f"{config.algorithm} {config.variant}", "data": config.data.name, "machine": machine()}
    return {**names, "batches": batches}
