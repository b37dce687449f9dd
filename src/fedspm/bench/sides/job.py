"""The job that all sides do, and how they take turns: without FedSPM, which peers' environments do not have."""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CHUNK = 256  # rows that are evaluated together
Rows = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """FedAvg with equally many rows at every client, each visited once per round; test rows, if any, are evaluated."""

    network: nn.Sequential  # the last layer is the head
    train: list[Rows]
    test: list[Rows]  # one part per client, or none
    batch_size: int
    rounds: int
    learning_rate: float = 0.01
    momentum: float = 0.9

    @property
    def steps(self) -> int:
        return len(self.train[0][1]) // self.batch_size

    @torch.no_grad()
    def accuracy(self, network: nn.Module) -> float | None:
        """Of all test rows, piece by piece."""
        if not self.test:
            return None
        pieces = [(x, y) for part in self.test for x, y in zip(*(rows.split(CHUNK) for rows in part), strict=True)]
        return sum(int((network(x).argmax(1) == y).sum()) for x, y in pieces) / sum(len(y) for _, y in self.test)

    def local_steps(self, network: nn.Module, x: Tensor, y: Tensor) -> None:
        """What a client does in a round, on a plain module."""
        optimiser = torch.optim.SGD(network.parameters(), lr=self.learning_rate, momentum=self.momentum, fused=True)
        for row in torch.randperm(len(y)).view(self.steps, self.batch_size):
            optimiser.zero_grad()
            cross_entropy(network(x[row]), y[row]).backward()
            optimiser.step()


def build(classes: int) -> nn.Sequential:
    """A small network for images of 28 × 28 pixels: 97 KB with ten classes."""
    network = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(288, 64),
        nn.Linear(64, classes),
    )
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def write(job: Job, path: str) -> None:
    tensors = {f"network.{name}": value.contiguous() for name, value in job.network.state_dict().items()}
    for part in ("train", "test"):
        for i, (x, y) in enumerate(getattr(job, part)):
            tensors |= {f"{part}.{i}.x": x.contiguous(), f"{part}.{i}.y": y}
    save_file(tensors, path, {"batch_size": str(job.batch_size), "rounds": str(job.rounds)})


def read(path: str) -> Job:
    torch.set_num_threads(1)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = {name: int(value) for name, value in file.metadata().items()}
    network = build(len(tensors["network.8.bias"]))
    network.load_state_dict({name: tensors[f"network.{name}"] for name in network.state_dict()})
    parts: dict[str, list[Rows]] = {"train": [], "test": []}
    for part, rows in parts.items():
        while (x := tensors.get(f"{part}.{len(rows)}.x")) is not None:
            images = x.contiguous(memory_format=torch.channels_last)
            rows.append((images, tensors[f"{part}.{len(rows)}.y"]))
    return Job(network, **parts, **known)  # type: ignore[arg-type]


class Turns:
    """After every round: say what came out, and wait for the next turn. Whatever else is printed goes to the log."""

    def __init__(self, cpu_seconds: Callable[[], float] = time.process_time) -> None:
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._clock = cpu_seconds
        self._before = 0.0

    def done(self, accuracy: float | None) -> None:
        said = {"accuracy": accuracy, "cpu_seconds": self._clock() - self._before}
        print(json.dumps(said), file=self._out, flush=True)
        sys.stdin.readline()
        self._before = self._clock()


def of_family() -> float:
    """CPU seconds of this process, of those that it started, and of those that they did."""
    family, ticks = {os.getpid()}, 0
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) in family:
            family.add(int(stat.parent.name))
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")
