"""`fedspm bench peers`: the same FedAvg job here, on Apple's pfl and on Flower's simulation, and its bare tensor work.

Every side is a process of its own, with one compute thread per worker; a peer's has an environment of its own, made
once in the user's cache. The sides take turns, one round at a time. Two jobs: `training`, with an evaluation in every
round, and `exchange`, with one step on one row per client: what is left when there is next to nothing to compute.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from fedspm.base.errors import FedSPMError
from fedspm.base.threads import cores
from fedspm.bench.measure import alternated, machine, ratio
from fedspm.bench.scale import divided
from fedspm.bench.sides.job import Job, build, write
from fedspm.data.catalog.cache import user_cache
from fedspm.engines.flower.environment import FLOWER, RAY
from fedspm.report.terminal import console

CLIENTS = 8
PEERS = {"pfl": ("pfl[pytorch]==0.6.0",), "flower": ("flwr[simulation]==1.41.0",)}


@dataclass(frozen=True)
class Size:
    steps: int
    batch_size: int
    test_rows: int  # a client


SIZES = {"training": Size(10, 128, 384), "exchange": Size(1, 1, 0)}


def bench_peers(
    data: str = "fashion-mnist",
    repeats: int = 5,
    peers: Sequence[str] = tuple(PEERS),
    sizes: Mapping[str, Size] = SIZES,
) -> dict[str, Any]:
    """Seconds of the same FedAvg job here and on every peer, whose environments are set up where they are missing."""
    workers = cores()
    commands = commands_of(peers, workers)
    jobs = {}
    for name, size in sizes.items():
        job = job_of(data, size, rounds=repeats + 2)
        jobs[name] = {"steps": size.steps, "batch_size": size.batch_size, **_measured(commands, job, repeats)}
    network = sum(parameter.nbytes for parameter in job.network.parameters())
    facts = {"algorithm": "FedAvg", "data": data, "clients": CLIENTS, "bytes_a_client": network}
    return {**facts, "machine": machine(), "repeats": repeats, "jobs": jobs, "figures": figures(jobs, workers)}


def commands_of(peers: Sequence[str], workers: int | None = None) -> dict[str, tuple[list[str], Sequence[str]]]:
    """How every side is started: bare work, ours with one worker, ours with so many, the peers."""
    commands = {"bare": _command(sys.executable, "fedspm.bench.sides", "bare")}
    for name, count in {"ours": 1, f"ours, {workers} workers": workers}.items():
        if count is not None:
            commands[name] = _command(sys.executable, "fedspm.bench.sides", "ours", str(count))
    return commands | {peer: _command(str(environment(peer)), "sides", peer) for peer in peers}


def figures(jobs: Mapping[str, Any], workers: int) -> dict[str, dict[str, float]]:
    """How many times what ours takes the peers take, by the clock and in CPU seconds."""
    found: dict[str, dict[str, float]] = {}
    for clock in ("seconds", "cpu_seconds"):
        if "training" in jobs and "pfl" in (sides := jobs["training"]["sides"]):
            for ours in ("ours", f"ours, {workers} workers"):
                found.setdefault(f"pfl over {ours}: a round", {})[clock] = ratio(
                    sides["pfl"][clock], sides[ours][clock]
                )
        if "exchange" in jobs and "flower" in (sides := jobs["exchange"]["sides"]):
            for what in ("start", "beyond_bare"):
                over = round(sides["flower"][what][clock] / sides["ours"][what][clock], 2)
                found.setdefault(f"flower over ours: {what}", {})[clock] = over
    return found


def job_of(data: str, size: Size, rounds: int) -> Job:
    """As many rows at every client as a round takes, and a small network of 100 KB."""
    mine = size.steps * size.batch_size
    with console.status("reading the data"):
        federation = divided(data, CLIENTS, 2 * CLIENTS * max(100, mine + size.test_rows))
    x, y = (torch.cat([getattr(part, name) for part in federation.train]) for name in "xy")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = [(x[row], y[row]) for row in order[: CLIENTS * (mine + size.test_rows)].view(CLIENTS, -1)]
    train = [(x[:mine], y[:mine]) for x, y in parts]
    test = [(x[mine:], y[mine:]) for x, y in parts] if size.test_rows else []
    torch.manual_seed(0)
    return Job(build(len(federation.classes)), train, test, size.batch_size, rounds)


def installed(peer: str) -> bool:
    """Has its environment been set up?"""
    return (_folder(peer) / "ready").exists()


def _folder(peer: str) -> Path:
    return user_cache() / "peers" / f"{peer}-torch-{torch.__version__.split('+')[0]}"


def environment(peer: str) -> Path:
    """The Python of a peer's environment, with the torch that runs here."""
    version, folder = torch.__version__.split("+")[0], _folder(peer)
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        with console.status(f"setting up {peer} in {folder} (once)"):
            venv.create(folder, clear=True, with_pip=True)
            install = [str(python), "-m", "pip", "install", "--quiet", f"torch=={version}", "safetensors", *PEERS[peer]]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FedSPMError(f"{peer} cannot be installed: {_last_line(done.stderr)}")
        ready.touch()
    return python


def _command(python: str, package: str, side: str, *arguments: str) -> tuple[list[str], Sequence[str]]:
    return [python, "-c", f"import sys; from {package}.{side} import main; main(*sys.argv[1:])"], arguments


class Running:
    """A side that waits for its turn."""

    def __init__(self, name: str, command: list[str], folder: Path):
        self._name = name
        self._log = (folder / f"{name}.log").open("w+")
        environ = os.environ | FLOWER | RAY
        if command[0] != sys.executable:
            environ |= {"PYTHONPATH": str(Path(__file__).parent), "FLWR_HOME": str(folder / "flower")}
        began = time.perf_counter()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environ, cwd=folder
        )
        self._answer: IO[str] = self._process.stdout  # type: ignore[assignment]
        self._ask: IO[str] = self._process.stdin  # type: ignore[assignment]
        self.said: list[dict[str, Any]] = []
        self._listen()
        self.first = time.perf_counter() - began

    def __enter__(self) -> "Running":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate() if kind else self._ask.close()
        self._process.wait()
        self._log.close()

    def turn(self) -> None:
        print(file=self._ask, flush=True)
        self._listen()

    def _listen(self) -> None:
        line = self._answer.readline()
        if not line:
            self._log.seek(0)
            raise FedSPMError(f"{self._name} ended: {_last_line(self._log.read())}")
        self.said.append(json.loads(line))


def _measured(commands: Mapping[str, tuple[list[str], Sequence[str]]], job: Job, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        path = Path(place) / "job.safetensors"
        write(job, str(path))
        sides = {}
        for name, (command, arguments) in commands.items():
            with console.status(f"starting {name}"):
                sides[name] = stack.enter_context(Running(name, [*command, str(path), *arguments], Path(place)))
        times = alternated({name: side.turn for name, side in sides.items()}, repeats)
    clocks = {
        name: {"seconds": times[name], "cpu_seconds": [each["cpu_seconds"] for each in side.said[2:]]}
        for name, side in sides.items()
    }
    return {"sides": {name: _summary(side, clocks[name], clocks["bare"]) for name, side in sides.items()}}


def _summary(side: Running, mine: dict[str, list[float]], bare: dict[str, list[float]]) -> dict[str, Any]:
    """Medians; the start is what the first round took beyond a later one."""
    first = {"seconds": side.first, "cpu_seconds": side.said[0]["cpu_seconds"]}
    median = {clock: statistics.median(values) for clock, values in mine.items()}
    beyond = {
        clock: statistics.median(this - that for this, that in zip(mine[clock], bare[clock], strict=True))
        for clock in mine
    }
    return {
        **mine,
        "median": median,
        "start": {clock: first[clock] - median[clock] for clock in mine},
        "over_bare": {clock: ratio(mine[clock], bare[clock]) for clock in mine},
        "beyond_bare": beyond,
        "accuracy": side.said[-1]["accuracy"],
    }


def _last_line(text: str) -> str:
    said = [line for line in text.splitlines() if line.strip()]
    return said[-1] if said else "it said nothing"
