"""`fedspm bench round`: a round of training against the same tensor work with nothing around it.

Both sides alternate within one run, one compute thread a worker; the median of the ratios of neighbours is reported.
The bare side does the gathers, forward and backward passes, SGD steps and E-step passes of one round on plain modules:
no engine, no clients, no private states, no replies, no averaging.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspm.algorithms.fedspm import FedSPM
from fedspm.config import resolve
from fedspm.core.local import chunks
from fedspm.core.settings import Block
from fedspm.data.federation import Federation
from fedspm.encoders.cnn import CNN
from fedspm.encoders.resnet import ResNet
from fedspm.engines.local import LocalEngine
from fedspm.runs import task_of
from fedspm.terminal import console
from fedspm.training import begin


def bench_round(data: str, repeats: int) -> dict[str, Any]:
    config = resolve({"data": {"name": data}, "em": {"start": "random"}})  # every round has its E-step
    with console.status("reading the data"):
        federation = config.federation()
    workers = os.cpu_count() or 1
    times: dict[str, list[float]] = {"bare": [], "one worker": [], f"{workers} workers": []}
    engines = {
        "one worker": LocalEngine(federation, seed=0, workers=1, device="cpu"),
        f"{workers} workers": LocalEngine(federation, seed=0, workers=workers, device="cpu"),
    }
    sides: dict[str, Callable[[], object]] = {"bare": _bare(federation, config.predictor, config.router)}
    for name, engine in engines.items():
        sides[name] = _round(FedSPM(config, task_of(federation)), engine)
    torch.set_num_threads(1)
    for repeat in track(range(repeats + 1), "alternating", console=console, transient=True):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if repeat:  # the first time is a warm-up
                times[name].append(time.perf_counter() - began)
    for engine in engines.values():
        engine.__exit__(None, None, None)
    return {
        "data": data,
        "rows": sum(federation.counts),
        "workers": workers,
        "repeats": repeats,
        "seconds": {name: [round(value, 4) for value in values] for name, values in times.items()},
        "median_seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
        "round_over_bare": _ratio(times["one worker"], times["bare"]),
        "speed_up_of_workers": _ratio(times["one worker"], times[f"{workers} workers"]),
    }


def _ratio(these: list[float], those: list[float]) -> float:
    """The median over repeats of the ratio of neighbours in time: a slow moment of the machine hits both."""
    return round(statistics.median(this / that for this, that in zip(these, those, strict=True)), 4)


def round_table(result: dict[str, Any]) -> Table:
    title = f"a FedSPM round, {result['data']}, {result['rows']:,} rows, median of {result['repeats']}"
    table = Table(title=title, title_justify="left")
    for heading in ("", "seconds", "against"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, seconds in result["median_seconds"].items():
        against = {"one worker": f"{result['round_over_bare']:.3f} × bare"}.get(name, "")
        if name.endswith("workers"):
            against = f"{result['speed_up_of_workers']:.2f} times as fast as one"
        table.add_row(name, f"{seconds:.3f}", against)
    return table


def _round(algorithm: FedSPM, engine: LocalEngine) -> Callable[[], object]:
    shared = begin(algorithm, engine)
    return lambda: algorithm.server_round(shared, engine)


def _bare(federation: Federation, predictor: Block, router: Block) -> Callable[[], None]:
    shape, clients, components = federation.shape, len(federation.names), 3
    classes = len(federation.classes)
    encoder = nn.Sequential(ResNet(shape, predictor.dimension), nn.Linear(predictor.dimension, components * classes))
    tilts = nn.Sequential(CNN(shape, router.dimension), nn.Linear(router.dimension, clients * components))
    networks = nn.ModuleList([encoder, tilts]).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pairs = list(zip(networks, (predictor, router), strict=True))

    def run() -> None:
        for part in federation.train:
            with torch.no_grad():
                for x in chunks(part.x):
                    for network, _ in pairs:
                        network(x)
            for network, block in pairs:
                _steps(network, block, part.x, part.y)

    return run


def _steps(network: nn.Module, block: Block, x: Tensor, y: Tensor) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=block.momentum, fused=True)
    for row in torch.randint(len(y), (block.steps, block.batch_size)):
        optimiser.zero_grad()
        cross_entropy(network(x[row]), y[row]).backward()
        optimiser.step()
