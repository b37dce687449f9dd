"""Strangers on eight connections who do all the time what costs a service most, and somebody with one image beside."""

import asyncio
import http.client
import json
import multiprocessing
import statistics
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from hostile_images import COSTLY, MEGABYTE, encoded

ALICE, MALLORY = "alice-0123456789abcdef", "mallory-0123456789abcdef"


@dataclass(frozen=True)
class Service:
    """A router with three nodes; alice is honest, mallory is not, and both have a token."""

    port: int
    process: subprocess.Popen
    image: bytes
    log: object

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def clients(self):
        headers = {"authorization": f"Bearer {ALICE}"}
        return httpx.get(f"{self.url}/v1/clients", headers=headers, timeout=60, trust_env=False).json()


CONNECTIONS = 8
LARGEST = 16 * 2**20 - 1000  # just within the limit of a body
JSON_LARGEST = 2 * 2**20 - 1000


def head(kind, length, token, path="/v1/predict"):
    length = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {token}",
        f"content-type: {kind}",
        length,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def many_tensors():
    entries = (f'"{k}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for k in range(300_000))
    header = ("{" + ",".join(entries) + "}").encode()
    return len(header).to_bytes(8, "little") + header


def bodies(name):
    """(content type, body) of one kind of attack."""
    if name == "empty tensors":
        return "application/x-safetensors", many_tensors()[:LARGEST]
    if name == "plain-text image":
        return "image/png", b"P3\n4000 4000\n255\n" + b"1 " * (15 * MEGABYTE // 2)
    if name == "large PNG":
        return "image/png", encoded("PNG", 4000)
    if name == "long JSON":
        return "application/json", b'{"x":[' + b"0," * (JSON_LARGEST // 2 - 10) + b"0]}"
    if name == "rows in JSON":
        row = json.dumps([[[0] * 28] * 28] * 3)
        return "application/json", ('{"x":[' + ",".join([row] * (JSON_LARGEST // (len(row) + 1))) + "]}").encode()
    return "image/png", COSTLY[name](15 * MEGABYTE)


WHOLE = ["empty tensors", "plain-text image", "large PNG", "long JSON", "rows in JSON", *COSTLY]
ATTACKS = [*WHOLE, "unfinished bodies", "half-open connections", "chunks of one byte", "pipelines", "mixed"]


async def _send(port, content, *, pause=0.0, listen=True):
    """One connection: everything, and then the reply, or whatever comes of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for start in range(0, len(content), 2**18):
            writer.write(content[start : start + 2**18])
            await writer.drain()
        if listen:
            await reader.read(2**16)
        await asyncio.sleep(pause)
    finally:
        writer.close()


async def _attack(name, port, token, k, memo):
    if name == "mixed":
        name = ATTACKS[(k * 5 + memo.setdefault("turn", 0)) % (len(ATTACKS) - 1)]
        memo["turn"] += 1
    if name in WHOLE:
        kind, body = memo.get(name) or memo.setdefault(name, bodies(name))
        return await _send(port, head(kind, len(body), token) + body)
    if name == "unfinished bodies":
        return await _send(port, head("image/png", LARGEST, token) + bytes(LARGEST - 1), pause=60, listen=False)
    if name == "half-open connections":
        return await _send(port, b"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ", pause=60, listen=False)
    if name == "chunks of one byte":
        return await _send(port, head("image/png", None, token) + b"1\r\nx\r\n" * 500_000)
    return await _send(port, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 100_000)


async def _attackers(name, port, token, connections):
    memo = {}

    async def attacker(k):
        while True:
            try:
                await asyncio.wait_for(_attack(name, port, token, k, memo), 90)
            except (TimeoutError, OSError):
                await asyncio.sleep(0.01)

    await asyncio.gather(*(attacker(k) for k in range(connections)))


def _process(name, port, token, connections, ready):
    if name in WHOLE:
        bodies(name)  # made before the clock runs
    ready.set()
    asyncio.run(_attackers(name, port, token, connections))


@contextmanager
def attack(name, port, token, connections=CONNECTIONS):
    """While the attack goes on, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_process, args=(name, port, token, connections, ready), daemon=True)
    process.start()
    try:
        assert ready.wait(120)
        time.sleep(1.0)  # until the first bodies have arrived
        yield
        assert process.is_alive()
    finally:
        process.kill()
        process.join()


def asked(port, image, token, seconds, least=10):
    """Seconds that each answer took, one new connection each, for so long."""
    headers = {"content-type": "image/png", "authorization": f"Bearer {token}"}
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until or len(times) < least:
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/predict", image, headers)
        reply = connection.getresponse()
        text = reply.read()
        times.append(time.perf_counter() - began)
        connection.close()
        assert reply.status == 200, text
        time.sleep(0.02)
    return times


def summary(times):
    ordered = sorted(times)
    return {
        "answers": len(times),
        "median": round(statistics.median(times), 4),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 4),
        "max": round(ordered[-1], 4),
    }


def resident(pid):
    """Megabytes that a process holds."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmRSS"))
