"""`fedspm bench round`: a round of training against the same tensor work with nothing around it.

Both sides alternate within one run, one compute thread per worker; the median of the ratios of neighbours is reported,
in CPU seconds where one process does the work. The bare side is what a round had to do, written down and done again on
plain modules: the same passes of the same encoders over as many rows, forward only or with backward and an SGD step. No
engine, clients, states, replies or averaging. A pass without gradients over rows that the same encoder has seen in this
round with the same parameters is not done again: it is overhead of the round.
Several workers are held against as many processes of bare work at a time: `python -m fedspm.bench.round`.
"""

import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.threads import cores, keep_freed_memory
from fedspm.bench.measure import by_both_clocks, machine, ratio
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.settings import Block
from fedspm.federated.task import Task
from fedspm.nn.encoder import Encoder
from fedspm.report.terminal import console
from fedspm.runs.config import Config, resolve
from fedspm.training.loop import begin


def bench_round(settings: Mapping[str, Any] | None = None, repeats: int = 5) -> dict[str, Any]:
    """Seconds of a round with one worker and with one per core, and of the same tensor work with nothing around it."""
    settings = settings or {}
    config = _config(settings)
    with console.status("reading the data"):
        federation = config.federation()
    workers = cores()
    engines = {
        "one worker": LocalEngine(federation, seed=0, workers=1, device="cpu"),
        f"{workers} workers": LocalEngine(federation, seed=0, workers=workers, device="cpu"),
    }
    methods = {name: build_algorithm(config, Task.of_federation(federation)) for name in engines}
    rounds = {name: _round(methods[name], engine) for name, engine in engines.items()}
    rounds["one worker"]()  # the incremental E-step begins with an exact one
    with recorded() as passes:
        rounds["one worker"]()
    needed = [each for each in passes if not each.again]
    order = {"settings": settings, "passes": [asdict(each) for each in needed]}
    together = f"bare, {workers} processes"
    torch.set_num_threads(1)
    with ExitStack() as stack:
        for engine in engines.values():
            stack.enter_context(engine)
        with console.status(f"starting {workers} processes"):
            processes = stack.enter_context(_processes(order, workers))
        sides = {"bare": _bare(methods["one worker"], needed, federation), **rounds, together: processes}
        clocks = by_both_clocks(sides, repeats)
    times, cpu = clocks["seconds"], {name: clocks["cpu_seconds"][name] for name in ("bare", "one worker")}
    times[together] = [seconds / workers for seconds in times[together]]  # of one round's work
    return {
        "algorithm": f"{config.algorithm} {config.variant}",
        "data": config.data.name,
        "rows": sum(federation.counts),
        "passes": {
            "forward": sum(each.rows for each in passes if not each.training),
            "with_backward": sum(each.rows for each in passes if each.training),
            "redundant": sum(each.rows for each in passes if each.again),
        },
        "workers": workers,
        "machine": machine(),
        "repeats": repeats,
        "seconds": {name: [round(value, 4) for value in values] for name, values in times.items()},
        "median_seconds": {name: round(statistics.median(values), 4) for name, values in times.items()},
        "cpu_seconds": {name: [round(value, 4) for value in values] for name, values in cpu.items()},
        "median_cpu_seconds": {name: round(statistics.median(values), 4) for name, values in cpu.items()},
        "round_over_bare": ratio(cpu["one worker"], cpu["bare"]),
        "speed_up_of_workers": ratio(times["one worker"], times[f"{workers} workers"]),
        "workers_of_processes": ratio(times[together], times[f"{workers} workers"]),
    }


def _config(settings: Mapping[str, Any]) -> Config:
    return resolve(settings, {"em": {"start": "random"}})  # every round has its E-step


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
    again: bool = False  # without gradients, and the same rows with the same parameters as one before it


@contextmanager
def recorded() -> Iterator[list[Pass]]:
    """Every pass through an encoder meanwhile."""
    passes: list[Pass] = []
    known: set[tuple[object, ...]] = set()
    call = Encoder.__call__

    def watched(
        self: Encoder, tensors: dict[str, Tensor], x: Tensor, *, training: bool = False, only: int | None = None
    ) -> Tensor:
        what = (self.role, only, _digest(x), *(_digest(tensors[name]) for name in sorted(self.take(tensors))))
        passes.append(Pass(self.role, len(x), training, only, again=not training and what in known))
        if not training:
            known.add(what)
        return call(self, tensors, x, training=training, only=only)

    with patch.object(Encoder, "__call__", watched):
        yield passes


def _digest(value: Tensor) -> bytes:
    return hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).digest()


@contextmanager
def _processes(order: dict[str, Any], count: int) -> Iterator[Callable[[], None]]:
    """A function that has `count` processes do the bare work at the same time, once each."""
    command = [sys.executable, "-m", "fedspm.bench.round"]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(count)
    ]

    def heard() -> None:
        for process in running:
            if not process.stdout or not process.stdout.readline():
                raise FedSPMError("a process of bare work ended early")

    def tell(line: str) -> None:
        for process in running:
            assert process.stdin
            process.stdin.write(line + "\n")

    def work() -> None:
        tell("once")
        heard()

    try:
        tell(json.dumps(order))
        heard()
        yield work
    finally:
        for process in running:
            process.kill()
            process.wait()


def serve() -> None:
    """One of these processes: an order, then a line each time, answered by a line."""
    torch.set_num_threads(1)
    keep_freed_memory()
    order = json.loads(sys.stdin.readline())
    config = _config(order["settings"])
    federation = config.federation()
    algorithm = build_algorithm(config, Task.of_federation(federation))
    run = _bare(algorithm, [Pass(**each) for each in order["passes"]], federation)
    print("ready", flush=True)
    for _ in sys.stdin:
        run()
        print("done", flush=True)


def _bare(algorithm: Algorithm, passes: Sequence[Pass], federation: Federation) -> Callable[[], None]:
    part = max(federation.train, key=len)
    components = algorithm.settings.components if algorithm.has_components else 1
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


if __name__ == "__main__":
    serve()
