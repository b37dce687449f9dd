"""`fedspm bench accuracy`: CPU seconds and rounds until given accuracies are reached.

Two races. The methods, each with its own settings, on the federation that a training would have, one worker, evaluated
after every round; evaluation is not counted. And the FedAvg job of `bench peers` here and on every peer that is set
up, each a process of its own, evaluation and start included, since a peer's cannot be told apart.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.bench.measure import machine
from fedspm.bench.peers import PEERS, Running, Size, commands_of, installed, job_of
from fedspm.bench.sides.job import write
from fedspm.data.catalog.sources import SAMPLE
from fedspm.data.federation import Federation
from fedspm.federated.task import Task
from fedspm.report.terminal import console
from fedspm.runs.config import Config, resolve
from fedspm.training.callbacks import Callback
from fedspm.training.loop import train
from fedspm.training.training import Training

METHODS = ("fedavg", "feddrm", "fedspm")
TARGETS = (0.6, 0.7, 0.8)
JOB, SMALL = Size(10, 128, 384), Size(4, 64, 96)  # of the peers' race: of whole data sets, of the sample
Reached = dict[str, dict[str, float] | None]  # by target: rounds and CPU seconds; None if it was not reached


def bench_accuracy(
    settings: Mapping[str, Any] | None = None,
    targets: Sequence[float] = TARGETS,
    methods: Sequence[str] = METHODS,
    peers: Sequence[str] | None = None,
    size: Size | None = None,
) -> dict[str, Any]:
    """Rounds and CPU seconds of every method until it has each system accuracy on test rows, at most the rounds of the
    configuration; and of the same FedAvg, of this size, on `peers` (those that are set up, if not given)."""
    if not targets or not all(0 < target < 1 for target in targets):
        raise FedSPMError(f"accuracies to reach lie between 0 and 1, these are {list(targets)}")
    targets = sorted(targets)
    base = resolve(settings or {}, {"algorithm": methods[0]})
    with console.status("reading the data"):
        federation = base.federation()
    races = {}
    for method in methods:
        config = resolve(settings or {}, {"algorithm": method, "workers": 1, "eval_every": 1})
        with console.status(f"training {method}"):
            races[method] = race(config, federation, targets)
    found = [peer for peer in PEERS if installed(peer)] if peers is None else list(peers)
    return {
        "algorithm": ", ".join(methods),
        "data": base.data.name,
        "rounds": base.rounds,
        "targets": targets,
        "machine": machine(),
        "methods": races,
        "peers": race_of_peers(base.data.name, size or _fitting(base.data.name), targets, base.rounds, found),
        "not_set_up": [peer for peer in PEERS if peer not in found],
    }


class Watch(Callback):
    """CPU seconds of the start and of every round, without evaluations; stops when the last target is reached."""

    def __init__(self, targets: Sequence[float]):
        self.reached: Reached = {f"{target:g}": None for target in targets}
        self.best, self.start, self.seconds = 0.0, 0.0, 0.0
        self._since = time.process_time()

    def on_start(self, training: Training) -> None:
        self.start = time.process_time() - self._since

    def on_round_start(self, training: Training) -> None:
        self._since = time.process_time()

    def on_round_end(self, training: Training) -> None:
        self.seconds += time.process_time() - self._since

    def on_evaluation(self, training: Training, metrics: dict[str, Any]) -> None:
        note(self.reached, metrics["system_accuracy"], training.round, self.start + self.seconds)
        self.best = max(self.best, metrics["system_accuracy"])
        if None not in self.reached.values():
            training.stop()


def note(reached: Reached, accuracy: float, rounds: int, seconds: float) -> None:
    """Every target that is reached for the first time."""
    for target, known in reached.items():
        if known is None and accuracy >= float(target):
            reached[target] = {"rounds": rounds, "cpu_seconds": round(seconds, 2)}


def race(config: Config, federation: Federation, targets: Sequence[float]) -> dict[str, Any]:
    """One method until it has all targets, or to its last round."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        watch = Watch(targets)
        train(config, build_algorithm(config, Task.of_federation(federation)), federation, callbacks=[watch])
    finally:
        torch.set_num_threads(threads)
    return {"reached": watch.reached, "best": watch.best, "start_cpu_seconds": round(watch.start, 2)}


def _fitting(data: str) -> Size:
    return SMALL if data == SAMPLE else JOB


def race_of_peers(data: str, size: Size, targets: Sequence[float], rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """The FedAvg job on one side after the other, until it has all targets or has done all rounds."""
    job = job_of(data, size, rounds=rounds)
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        path = Path(place) / "job.safetensors"
        write(job, str(path))
        found = {}
        for name, (command, arguments) in commands_of(peers).items():
            reached: Reached = {f"{target:g}": None for target in targets}
            with console.status(f"running {name}"):
                side = stack.enter_context(Running(name, [*command, str(path), *arguments], Path(place)))
                for number in range(1, rounds + 1):
                    seconds = sum(each["cpu_seconds"] for each in side.said)
                    note(reached, side.said[-1]["accuracy"], number, seconds)
                    if None not in reached.values() or number == rounds:
                        break
                    side.turn()
            best = max(each["accuracy"] for each in side.said)
            found[name] = {"reached": reached, "best": best, "start_cpu_seconds": side.said[0]["cpu_seconds"]}
    return found
