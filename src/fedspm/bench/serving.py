"""`fedspm bench serving`: load on a router and its nodes, against the bare pass of router and predictor, by turns.

Wall-clock figures mean something on an idle machine only. On a busy one compare CPU milliseconds per image, which are
those of the router and all nodes (its children) and of the bare pass; the callers' own are not counted.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.bench.measure import machine
from fedspm.report.terminal import console
from fedspm.runs.folder import Run

HEADERS = {"content-type": "application/x-safetensors"}
LOADS = ((64, 32), (1, 32), (1, 1))  # rows of a request, callers
QUERIES = 4096  # rows that are asked
PATIENCE = 120  # seconds until a service answers


def bench_serving(
    run: Path | str, repeats: int = 2, seconds: float = 20, kill_every: float | None = None
) -> dict[str, Any]:
    """Serve a run on this machine, ask it for `seconds` with every load, and hold it against the bare pass.

    With `kill_every`, a node is also killed every so many seconds while the service is asked.
    """
    opened = Run.open(Path(run))
    test = opened.federation().test
    if test is None:
        raise FedSPMError(f"{run} has no test rows to ask")
    x = torch.cat([part.x for part in test])
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:QUERIES]]
    loads = []
    with served(Path(run)) as (url, process):
        for rows, callers in LOADS:
            for _ in range(repeats):
                with console.status(f"{callers} callers, {rows} rows a request"):
                    bare = bare_pass(opened, x, rows, seconds / 4)
                    loads.append(asyncio.run(_measured(url, process, x, rows, callers, seconds)) | {"bare": bare})
        for rows in (1, 64) if kill_every else ():
            with console.status(f"32 callers, {rows} rows a request, nodes are killed"):
                loads.append(asyncio.run(_measured(url, process, x, rows, 32, seconds, kill_every)))
    config = opened.config
    names = {"algorithm": f"{config.algorithm} {config.variant}", "data": config.data.name, "machine": machine()}
    return {**names, "seconds": seconds, "loads": loads}


@contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """`fedspm serve all` in a process of its own: the address that predicts, and the number of the process."""
    port = free_port()
    command = [sys.executable, "-m", "fedspm", "serve", "all", str(run.resolve()), "--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen([*command, "--rate", "1e9"], stdout=log, stderr=log) as process,
    ):
        try:
            _wait(f"http://127.0.0.1:{port}/v1/clients", process)
            yield f"http://127.0.0.1:{port}/v1/predict", process.pid
        except FedSPMError as error:
            log.seek(0)
            said = [line for line in log.read().splitlines() if line.strip()]
            raise FedSPMError(f"{error}: {said[-1] if said else 'it said nothing'}") from error
        finally:
            process.terminate()


def _wait(address: str, process: "subprocess.Popen[bytes]") -> None:
    """Until the router and all its nodes are up."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as reply:
                if all(client["up"] for client in json.load(reply)):
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise FedSPMError("the service did not start")


def bare_pass(run: Run, x: Tensor, rows: int, seconds: float) -> dict[str, float]:
    """One thread that routes and predicts, nothing else."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = run.model()
    times: list[float] = []
    with torch.no_grad():
        for start in range(0, 5 * rows, rows):
            model.answer(model.embed(x[start : start + rows]))
        began, used = time.monotonic(), time.process_time()
        while not times or time.monotonic() - began < seconds:
            start = random.randrange(max(1, len(x) - rows))
            before = time.perf_counter()
            model.answer(model.embed(x[start : start + rows]))
            times.append(time.perf_counter() - before)
    used = time.process_time() - used
    torch.set_num_threads(threads)
    return {
        "cpu_ms_an_image": round(1000 * used / len(times) / rows, 3),
        "median_ms": round(1000 * sorted(times)[len(times) // 2], 3),
    }


async def _measured(
    url: str, process: int, x: Tensor, rows: int, callers: int, seconds: float, kill_every: float | None = None
) -> dict[str, Any]:
    killed: list[int] = []
    reaper = asyncio.create_task(_kill_nodes(process, kill_every, killed)) if kill_every else None
    processes = process_tree(process)
    before = cpu_seconds(processes)
    result = await _load(url, x, rows, callers, seconds)
    used = cpu_seconds(processes) - before
    if reaper:
        reaper.cancel()
        return result | {"killed": len(killed)}
    return result | {"cpu_ms_an_image": round(1000 * used / max(1, result["requests"] * rows), 3)}


async def _load(url: str, x: Tensor, rows: int, callers: int, seconds: float) -> dict[str, Any]:
    """What `callers` see that each ask again as soon as they are answered."""
    import aiohttp

    bodies = [save({"x": x[i * rows : (i + 1) * rows].contiguous()}) for i in range(max(1, min(64, len(x) // rows)))]
    times: list[float] = []
    inside: list[float] = []
    failed: list[str] = []
    fallbacks = 0

    async def call(session: aiohttp.ClientSession, number: int, until: float) -> None:
        nonlocal fallbacks
        while time.monotonic() < until:
            before = time.perf_counter()
            try:
                async with session.post(url, data=bodies[number % len(bodies)], headers=HEADERS) as reply:
                    text = await reply.read()
                if reply.status != 200:
                    failed.append(f"{reply.status} {text[:200]!r}")
                else:
                    content = json.loads(text)
                    inside.append(content["seconds"])
                    fallbacks += sum(answer["fallback"] for answer in content["answers"])
            except aiohttp.ClientError as error:
                failed.append(repr(error))
            times.append(time.perf_counter() - before)
            number += 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.monotonic()
        await asyncio.gather(*(call(session, caller, began + seconds) for caller in range(callers)))
        took = time.monotonic() - began
    times.sort()
    return {
        "rows": rows,
        "callers": callers,
        "requests": len(times),
        "failed": len(failed),
        "why": failed[:2],
        "fallback_rows": fallbacks,
        "images_per_second": round(len(times) * rows / took),
        "median_ms": round(1000 * times[len(times) // 2], 1),
        "p99_ms": round(1000 * times[int(0.99 * len(times))], 1),
        "median_inside_ms": round(1000 * sorted(inside)[len(inside) // 2], 1) if inside else None,
    }


async def _kill_nodes(process: int, every: float, killed: list[int]) -> None:
    """Kill a node every few seconds; the supervisor starts it again."""
    while True:
        await asyncio.sleep(every)
        below = [each for each in process_tree(process) if b"forkserver" in Path(f"/proc/{each}/cmdline").read_bytes()]
        nodes = [each for each in below if len(process_tree(each)) == 1]
        if nodes:
            killed.append(random.choice(nodes))
            os.kill(killed[-1], signal.SIGKILL)


def process_tree(root: int) -> list[int]:
    """A process and all below it."""
    lines = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in lines.splitlines():
        process, parent = map(int, line.split())
        children.setdefault(parent, []).append(process)
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(processes: Sequence[int]) -> float:
    """What these have used so far; one that is gone counts nothing."""
    total = 0.0
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
