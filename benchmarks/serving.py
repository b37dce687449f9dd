"""Load on `fedspm serve all RUN --port PORT --rate 1e9`, against the bare router-and-predictor pass, by turns.

    python benchmarks/serving.py RUN --port 8000 --seconds 20 --kill 5

Wall-clock figures mean something on an idle machine only. On a busy one compare CPU milliseconds an image, which are
those of the router and all nodes (their children), and of the bare pass; the callers' own are not counted.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import aiohttp
import torch
from safetensors.torch import save

from fedspm.runs.folder import Run

HEADERS = {"content-type": "application/x-safetensors"}
TICKS = os.sysconf("SC_CLK_TCK")


def tree(root: int) -> list[int]:
    lines = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for line in lines.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
        except OSError:
            pass
    return total


def bare(run: Run, x: torch.Tensor, rows: int, seconds: float) -> dict[str, float]:
    """One thread that looks and predicts, nothing else."""
    torch.set_num_threads(1)
    model, times = run.model(), []
    with torch.no_grad():
        for start in range(0, 5 * rows, rows):
            model.answer(model.embed(x[start : start + rows]))
        began, used = time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            start = random.randrange(len(x) - rows)
            before = time.perf_counter()
            model.answer(model.embed(x[start : start + rows]))
            times.append(time.perf_counter() - before)
    used = time.process_time() - used
    return {"cpu_ms": 1000 * used / len(times) / rows, "median_ms": 1000 * sorted(times)[len(times) // 2]}


async def load(url: str, x: torch.Tensor, rows: int, callers: int, seconds: float) -> dict[str, object]:
    bodies = [save({"x": x[i * rows : (i + 1) * rows].contiguous()}) for i in range(min(64, len(x) // rows))]
    times: list[float] = []
    inside: list[float] = []
    failed: list[str] = []
    fallbacks = 0

    async def call(session: aiohttp.ClientSession, caller: int, until: float) -> None:
        nonlocal fallbacks
        number = caller
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


async def killing(root: int, every: float) -> int:
    """Kill a node every few seconds; the supervisor starts it again."""
    killed = 0
    while True:
        await asyncio.sleep(every)
        nodes = [pid for pid in tree(root) if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        leaves = [pid for pid in nodes if len(tree(pid)) == 1]
        os.kill(random.choice(leaves), signal.SIGKILL)
        killed += 1
        print(json.dumps({"killed": killed}), flush=True)


async def measured(arguments: argparse.Namespace, x: torch.Tensor, rows: int, callers: int, kill: bool) -> None:
    url = f"http://127.0.0.1:{arguments.port}/v1/predict"
    reaper = asyncio.create_task(killing(arguments.pid, arguments.kill)) if kill else None
    before, pids = cpu_seconds(tree(arguments.pid)), tree(arguments.pid)
    result = await load(url, x, rows, callers, arguments.seconds)
    used = cpu_seconds(pids) - before
    if reaper:
        reaper.cancel()
    else:
        result["cpu_ms_an_image"] = round(1000 * used / max(1, int(str(result["requests"])) * rows), 3)
    print(json.dumps(result), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--pid", type=int, required=True, help="process id of `fedspm serve all`")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kill", type=float, default=0, help="also: kill a node every so many seconds")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    test = run.federation().test
    assert test is not None
    x = torch.cat([part.x for part in test])
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:4096]]
    for rows, callers in ((64, 32), (1, 32), (1, 1)):
        for _ in range(arguments.rounds):
            result = bare(run, x, rows, arguments.seconds / 4)
            print(json.dumps({"bare": True, "rows": rows, **{k: round(v, 3) for k, v in result.items()}}), flush=True)
            asyncio.run(measured(arguments, x, rows, callers, kill=False))
    if arguments.kill:
        asyncio.run(measured(arguments, x, 1, 32, kill=True))
        asyncio.run(measured(arguments, x, 64, 32, kill=True))


if __name__ == "__main__":
    main()
