"""`fedspm bench round`: a round of training against the same tensor work with nothing around it.

Both sides alternate within one run, one compute thread a worker; the median of the ratios of neighbours is reported.
The bare side is what a round did, written down and done again on plain modules: the same passes of the same encoders
over as many rows, forward only or with backward and an SGD step. No engine, clients, states, replies or averaging.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspm.algorithms import algorithm_named
from fedspm.bench.measure import alternated, machine, ratio
from fedspm.config import resolve
from fedspm.core.algorithm import Algorithm
from fedspm.core.settings import Block
from fedspm.data.federation import Federation
from fedspm.encoders import Encoder
from fedspm.engines.local import LocalEngine
from fedspm.runs import task_of
from fedspm.terminal import console
from fedspm.training import begin


def bench_round(algorithm: str, variant: str, data: str, repeats: int) -> dict[str, Any]:
    settings = {"algorithm": algorithm, "variant": variant, "data": {"name": data}}
    config = resolve(settings, {"em": {"start": "random"}})  # every round has its E-step
    with console.status("reading the data"):
        federation = config.federation()
    workers = os.cpu_count() or 1
    engines = {
        "one worker": LocalEngine(federation, seed=0, workers=1, device="cpu"),
        f"{workers} workers": LocalEngine(federation, seed=0, workers=workers, device="cpu"),
    }
    methods = {name: algorithm_named(algorithm)(config, task_of(federation)) for name in engines}
    rounds = {name: _round(methods[name], engine) for name, engine in engines.items()}
    with recorded() as passes:
        rounds["one worker"]()
    sides = {"bare": _bare(methods["one worker"], passes, federation), **rounds}
    torch.set_num_threads(1)
    times = alternated(sides, repeats)
    for engine in engines.values():
        engine.__exit__(None, None, None)
    return {
        "algorithm": f"{algorithm} {variant}",
        "data": data,
        "rows": sum(federation.counts),
        "workers": workers,
        "machine": machine(),
        "repeats": repeats,
        "seconds": {name: [round(value, 4) for value in values] for name, values in times.items()},
        "median_seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
        "round_over_bare": ratio(times["one worker"], times["bare"]),
        "speed_up_of_workers": ratio(times["one worker"], times[f"{workers} workers"]),
    }


def _round(algorithm: Algorithm, engine: LocalEngine) -> Callable[[], object]:
    shared = begin(algorithm, engine)
    return lambda: algorithm.server_round(shared, engine)


@dataclass(frozen=True)
class Pass:
    """Rows that went through an encoder, or through one of its copies."""

    role: str
    rows: int
    training: bool
    only: int | None


@contextmanager
def recorded() -> Iterator[list[Pass]]:
    """Every pass through an encoder meanwhile."""
    passes: list[Pass] = []
    call = Encoder.__call__

    def watched(
        self: Encoder, tensors: dict[str, Tensor], x: Tensor, *, training: bool = False, only: int | None = None
    ) -> Tensor:
        passes.append(Pass(self.role, len(x), training, only))
        return call(self, tensors, x, training=training, only=only)

    with patch.object(Encoder, "__call__", watched):
        yield passes


def _bare(algorithm: Algorithm, passes: list[Pass], federation: Federation) -> Callable[[], None]:
    part = max(federation.train, key=len)
    components = algorithm.settings.components if algorithm.mixes else 1
    outputs = {"predictor": components * len(federation.classes), "router": components * len(federation.names)}
    banks: dict[str, list[nn.Module]] = {}
    optimisers: dict[str, torch.optim.SGD] = {}
    for encoder in algorithm.encoders:
        block: Block = getattr(algorithm.settings, encoder.role)
        banks[encoder.role] = [
            nn.Sequential(network, nn.Linear(encoder.dimension, outputs[encoder.role]))
            for network in encoder.networks()
        ]
        parameters = nn.ModuleList(banks[encoder.role]).parameters()
        optimisers[encoder.role] = torch.optim.SGD(parameters, lr=1e-4, momentum=block.momentum, fused=True)

    def run() -> None:
        first = 0
        for each in passes:
            networks = banks[each.role] if each.only is None else [banks[each.role][each.only]]
            if each.training:
                row = torch.randint(len(part), (each.rows,))
                x, y, optimiser = part.x[row], part.y[row] % outputs[each.role], optimisers[each.role]
                optimiser.zero_grad()
                torch.stack([cross_entropy(network(x), y) for network in networks]).sum().backward()
                optimiser.step()
            else:
                first = (first + each.rows) % max(1, len(part) - each.rows)
                with torch.no_grad():
                    for network in networks:
                        network(part.x[first : first + each.rows])

    return run
